// Memory of ended operations that peers on the same host may still read or write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "port.h"
#include "request.h"
#include "slackline/arena.h"

namespace slackline {

// The blocks of the arena that were lent to peers by operations that have failed. A frame with a
// reference lends memory to a peer: the peer reads the memory, and may store a result in it. A
// peer that was stopped does so after the operation has failed here. The blocks are therefore
// withheld from new allocations until each peer has ended its part: it has read the ABORT frame of
// the operation, or has answered every reference, or has closed the group, or is dead. All calls
// are made under the engine's lock.
class LentMemory {
 public:
  // A peer that has not shown yet that it has ended the operation.
  struct Borrower {
    Link* link;
    std::uint32_t lent;  // references that the peer has not answered
    Lender::Mark told;   // behind the ABORT frame of the operation, if the peer gets one
  };

  explicit LentMemory(Arena& arena) : arena_(arena) {}

  bool empty() const { return loans_.empty(); }
  // Withhold blocks, given by any address in each, until all borrowers have ended the operation
  // `key`. An address outside the arena's blocks is ignored. Withholds nothing if there is no
  // memory for the table.
  void withhold(const Key& key, const std::vector<const void*>& addresses,
                std::vector<Borrower> borrowers);
  // Note that the peer has answered one reference of an operation that has ended here.
  void returned(const Key& key, const Link& link);
  // Note that the peer has closed the group with this epoch, and so has ended all its operations.
  void left(const Link& link, std::uint32_t epoch);
  // Release the blocks whose borrowers have all ended the operation or are dead.
  void collect();
  // Return whether the link's peer has blocks.
  bool lent_to(const Link& link) const;
  // Forget the borrowers, because the links end. The blocks are withheld as long as the arena
  // lives.
  void forget_links();
  // Return, by the name of the link, the bytes that were freed and that the peer still keeps from
  // being allocated.
  std::map<std::string, std::uint64_t> withheld_by_peer() const;
  // Return the bytes that were freed and cannot be allocated yet. Memory that several peers keep
  // counts once.
  std::uint64_t withheld_bytes() const;

 private:
  struct Loan {
    Key key;
    std::vector<std::byte*> blocks;
    std::vector<Borrower> borrowers;
  };

  static bool ended(Borrower& borrower);

  Arena& arena_;
  std::deque<Loan> loans_;
};

}  // namespace slackline
