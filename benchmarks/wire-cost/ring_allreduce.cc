// A plain ring all_reduce over TCP, as a bound for the other contestants.
//
//     ring_allreduce FOLDER RANK SIZE ADDRESS
//
// The program takes turns by the protocol in turns.h. It listens on ADDRESS, and reads the address
// of the next rank from its question pipe ("connect ADDRESS PORT").
//
// A buffer has one chunk for each rank. In 2 (SIZE - 1) steps a rank sends a chunk to the next rank
// and receives one from the previous rank. In the first half of the steps it adds the received
// chunk to its own, in the second half it stores it. Chunks are divided into pieces. One thread
// receives and adds; another thread sends each piece as soon as it is complete. Both use blocking
// calls.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "turns.h"

namespace {

constexpr int kPieces = 8;           // pieces of a chunk, within these limits of their lengths
constexpr int kShortest = 2048;      // elements
constexpr int kLongest = 64 * 1024;  // elements

[[noreturn]] void die(const char* what) {
  perror(what);
  exit(1);
}

struct Span {
  int from, to;
};

// Returns part number `index` of `parts` nearly equal parts of `whole`.
Span part(Span whole, int index, int parts) {
  const std::int64_t count = whole.to - whole.from;
  return {whole.from + static_cast<int>(count * index / parts),
          whole.from + static_cast<int>(count * (index + 1) / parts)};
}

class Ring {
 public:
  Ring(int rank, int size, int next, int previous)
      : rank_(rank), size_(size), next_(next), previous_(previous), sender_([this] {
          send_all();
        }) {}

  ~Ring() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    sender_.join();
  }

  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void reduce(float* buffer, int count) {
    const int chunk = count / size_;
    const int pieces = std::clamp(kPieces, chunk / kLongest + 1, std::max(1, chunk / kShortest));
    {
      const std::lock_guard lock(mutex_);
      buffer_ = buffer, count_ = count, pieces_ = pieces;
      sent_ = 0, sendable_ = pieces, wanted_ = 2 * (size_ - 1) * pieces;
    }
    changed_.notify_all();
    for (int number = 0; number < wanted_; number++) {
      receive(number);
      if (number + pieces >= wanted_) continue;  // the last chunk is not sent to the next rank
      {
        const std::lock_guard lock(mutex_);
        sendable_ = number + pieces + 1;
      }
      changed_.notify_all();
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return sent_ == wanted_; });
  }

  // Send a byte around the ring twice. After the first round all ranks have entered the barrier;
  // after the second round all ranks know that.
  void barrier() {
    char token = 0;
    for (int round = 0; round < 2; round++) {
      if (rank_ != 0) receive_bytes(&token, 1);
      send_bytes(&token, 1);
      if (rank_ == 0) receive_bytes(&token, 1);
    }
  }

 private:
  // Returns the elements of piece `number`, counted in the order of sending. The piece that this
  // rank receives under the same number is sent one chunk later.
  Span piece(int number) const {
    const int step = number / pieces_;
    const int chunk = ((rank_ - step) % size_ + size_) % size_;
    return part(part({0, count_}, chunk, size_), number % pieces_, pieces_);
  }

  void receive(int number) {
    const Span where = piece(number + pieces_);
    const int length = where.to - where.from;
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(length);
    float* target = buffer_ + where.from;
    if (number / pieces_ >= size_ - 1) {
      receive_bytes(target, bytes);
      return;
    }
    if (arrived_.size() < static_cast<std::size_t>(length))
      arrived_.resize(static_cast<std::size_t>(length));
    receive_bytes(arrived_.data(), bytes);
    const float* addend = arrived_.data();
    for (int i = 0; i < length; i++) target[i] += addend[i];
  }

  void send_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return over_ || sent_ < sendable_; });
      if (over_) return;
      const Span where = piece(sent_);
      const float* source = buffer_ + where.from;
      lock.unlock();
      send_bytes(source, sizeof(float) * static_cast<std::size_t>(where.to - where.from));
      lock.lock();
      if (++sent_ == wanted_) changed_.notify_all();
    }
  }

  void send_bytes(const void* source, std::size_t bytes) {
    const char* from = static_cast<const char*>(source);
    while (bytes > 0) {
      const ssize_t done = send(next_, from, bytes, MSG_NOSIGNAL);
      if (done <= 0) die("send");
      from += done, bytes -= static_cast<std::size_t>(done);
    }
  }

  void receive_bytes(void* target, std::size_t bytes) {
    char* to = static_cast<char*>(target);
    while (bytes > 0) {
      const ssize_t done = recv(previous_, to, bytes, MSG_WAITALL);
      if (done < 0) die("recv");
      if (done == 0) {
        fprintf(stderr, "rank %d: the rank before has ended\n", rank_);
        exit(1);
      }
      to += done, bytes -= static_cast<std::size_t>(done);
    }
  }

  const int rank_, size_, next_, previous_;
  std::vector<float> arrived_;
  std::mutex mutex_;
  std::condition_variable changed_;
  float* buffer_ = nullptr;
  int count_ = 0, pieces_ = 0;
  int sent_ = 0, sendable_ = 0, wanted_ = 0;  // pieces of this call
  bool over_ = false;
  std::thread sender_;
};

sockaddr_in at(const char* address, int port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, address, &where.sin_addr) != 1) {
    fprintf(stderr, "not an IPv4 address: %s\n", address);
    exit(2);
  }
  return where;
}

int tcp_socket() {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  if (made < 0) die("socket");
  return made;
}

void send_at_once(int connection) {
  const int yes = 1;
  if (setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0) die("TCP_NODELAY");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: ring_allreduce FOLDER RANK SIZE ADDRESS\n");
    return 2;
  }
  const int rank = atoi(argv[2]), size = atoi(argv[3]);
  const int server = tcp_socket();
  sockaddr_in here = at(argv[4], 0);
  socklen_t length = sizeof here;
  if (bind(server, reinterpret_cast<sockaddr*>(&here), length) != 0) die("bind");
  if (listen(server, 1) != 0) die("listen");
  if (getsockname(server, reinterpret_cast<sockaddr*>(&here), &length) != 0) die("getsockname");

  const Conductor conductor = meet(argv[1], rank, ntohs(here.sin_port));
  char address[64];
  int port = 0;
  if (fscanf(conductor.questions, " connect %63s %d", address, &port) != 2) return 2;
  const int next = tcp_socket();
  const sockaddr_in there = at(address, port);
  if (connect(next, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) die("connect");
  const int previous = accept(server, nullptr, nullptr);
  if (previous < 0) die("accept");
  send_at_once(next);

  Ring ring(rank, size, next, previous);
  const Contestant all = {
      rank, size,
      [](void* self, float* buffer, int count) { static_cast<Ring*>(self)->reduce(buffer, count); },
      [](void* self) { static_cast<Ring*>(self)->barrier(); }, &ring};
  serve(&all, &conductor);
  return 0;
}
