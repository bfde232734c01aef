#include "udp_receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace slackline {

bool UdpReceiver::well_formed(const UdpHeader& packet, std::size_t bytes) const {
  return packet.unit >= kUdpMinUnit && packet.unit <= kUdpMaxPacket && packet.total >= kHeader &&
         packet.total <= kHeader + kMaxPayload && packet.offset < packet.total &&
         packet.offset % packet.unit == 0 &&
         bytes == std::min<std::size_t>(packet.unit, packet.total - packet.offset);
}

bool UdpReceiver::check(const wire::Header& header, std::uint32_t total) const {
  return header.magic == wire::kMagic && header.version == wire::kVersion && header.job == job_ &&
         kHeader + header.length == total &&
         crc32c(0, &header, kHeader - sizeof header.header_checksum) == header.header_checksum;
}

std::uint32_t UdpReceiver::place(std::uint32_t frame) const {
  const auto ahead = static_cast<std::int32_t>(frame - static_cast<std::uint32_t>(base_));
  if (ahead < 0) return kUdpOpenFrames;
  const auto index = static_cast<std::uint32_t>(ahead);
  if (index >= kUdpOpenFrames) return kUdpOpenFrames + 1;
  return index < slots_.size() && slots_[index].done ? kUdpOpenFrames : index;
}

// Free the frame's place in the window; the caller is responsible for the frame's payload.
void UdpReceiver::finish(std::uint32_t place) {
  if (slots_.size() <= place) slots_.resize(place + 1);
  Slot& slot = slots_[place];
  if (slot.partial) held_bytes_ -= slot.partial->total;
  slot.partial.reset();
  slot.done = true;
  while (!slots_.empty() && slots_.front().done) {
    slots_.pop_front();
    ++base_;
  }
}

bool UdpReceiver::begin(Slot& slot, const UdpHeader& packet) {
  if (held_bytes_ > 0 && held_bytes_ + packet.total > kUdpOpenBytes) return false;
  const std::uint32_t count = (packet.total + packet.unit - 1) / packet.unit;
  slot.partial =
      std::make_unique<Partial>(Partial{packet.total, packet.unit, count, UdpBits(count)});
  held_bytes_ += packet.total;
  return true;
}

bool UdpReceiver::take(const UdpHeader& packet, std::span<const std::byte> data, Link& link,
                       FrameSink& sink) {
  if (!well_formed(packet, data.size())) return false;
  const std::uint32_t index = place(packet.frame);
  if (index >= kUdpOpenFrames) return index == kUdpOpenFrames;
  wire::Header header;
  if (packet.offset == 0) {
    std::memcpy(&header, data.data(), kHeader);
    if (!check(header, packet.total)) return false;
    data = data.subspan(kHeader);
    if (packet.total <= packet.unit) {  // the frame fits in one packet
      if (index < slots_.size() && slots_[index].partial) return false;
      finish(index);
      ++frames_;
      bytes_ += packet.total;
      sink.arrive(link, header, Payload{data.data(), nullptr, header.length});
      return true;
    }
  }
  if (slots_.size() <= index) slots_.resize(index + 1);
  Slot& slot = slots_[index];
  if (!slot.partial && !begin(slot, packet)) return false;
  Partial& partial = *slot.partial;
  if (partial.total != packet.total || partial.unit != packet.unit) return false;
  if (partial.got.test(packet.offset / packet.unit)) return true;
  bytes_ += std::min<std::uint32_t>(packet.unit, packet.total - packet.offset);
  if (packet.offset == 0) partial.header = header;
  if (partial.payload == nullptr) {
    // The destination is unknown until the frame's header has arrived. If another fragment arrives
    // first, the whole payload goes to a buffer.
    if (packet.offset == 0 && header.length > kBulkBytes)
      partial.payload = sink.direct_placement(link, header, &partial.owner);
    if (partial.payload == nullptr) {
      partial.payload = sink.take_buffer(packet.total - kHeader);
      partial.owned = true;
      partial.owner = nullptr;
    }
  }
  partial.got.set(packet.offset / packet.unit);
  if (!data.empty())
    std::memcpy(partial.payload + (packet.offset == 0 ? 0 : packet.offset - kHeader), data.data(),
                data.size());
  if (--partial.missing > 0) return true;
  // The engine may call forget() from within arrive(), so finish all use of the frame before.
  header = partial.header;
  const Payload payload{partial.payload, partial.owned ? partial.payload : nullptr, header.length};
  finish(index);
  ++frames_;
  sink.arrive(link, header, payload);
  return true;
}

bool UdpReceiver::skip(const UdpHeader& packet, FrameSink& sink) {
  const std::uint32_t index = place(packet.frame);
  if (index >= kUdpOpenFrames) return index == kUdpOpenFrames;
  if (index < slots_.size() && slots_[index].partial && slots_[index].partial->owned)
    sink.give_buffer(slots_[index].partial->payload);
  finish(index);
  return true;
}

void UdpReceiver::forget(const Request* owner, FrameSink& sink) {
  for (Slot& slot : slots_) {
    if (!slot.partial || slot.partial->payload == nullptr || slot.partial->owned ||
        slot.partial->owner != owner)
      continue;
    Partial& partial = *slot.partial;
    std::byte* buffer = sink.take_buffer(partial.total - kHeader);
    std::memcpy(buffer, partial.payload, partial.total - kHeader);
    partial.payload = buffer;
    partial.owned = true;
    partial.owner = nullptr;
  }
}

void UdpReceiver::abandon(FrameSink& sink) {
  for (Slot& slot : slots_) {
    if (!slot.partial) continue;
    held_bytes_ -= slot.partial->total;
    if (slot.partial->owned) sink.give_buffer(slot.partial->payload);
    slot.partial.reset();
  }
}

}  // namespace slackline
