#include "lent_memory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "link.h"

namespace slackline {

void LentMemory::withhold(const Key& key, const std::vector<const void*>& addresses,
                          std::vector<Borrower> borrowers) {
  Loan loan{key, {}, std::move(borrowers)};
  for (Borrower& borrower : loan.borrowers) ended(borrower);  // completes the mark
  loan.blocks.reserve(addresses.size());
  loans_.push_back(std::move(loan));
  std::vector<std::byte*>& blocks = loans_.back().blocks;
  for (const void* address : addresses) {
    if (std::byte* block = arena_.withhold(address)) blocks.push_back(block);
  }
  if (blocks.empty()) loans_.pop_back();
}

void LentMemory::returned(const Key& key, const Link& link) {
  for (Loan& loan : loans_) {
    if (loan.key != key) continue;
    for (Borrower& borrower : loan.borrowers) {
      if (borrower.link == &link && borrower.lent > 0) --borrower.lent;
    }
  }
}

void LentMemory::left(const Link& link, std::uint32_t epoch) {
  for (Loan& loan : loans_) {
    if (loan.key.epoch != epoch) continue;
    std::erase_if(loan.borrowers, [&](const Borrower& b) { return b.link == &link; });
  }
}

void LentMemory::collect() {
  std::map<Link*, bool> gone;
  for (const Loan& loan : loans_) {
    for (const Borrower& borrower : loan.borrowers) gone.try_emplace(borrower.link);
  }
  // Without its rail the peer is dead as well.
  for (auto& [link, dead] : gone) {
    const Lender* lender = link->port().lender();
    dead = lender == nullptr || lender->gone();
  }
  for (Loan& loan : loans_) {
    std::erase_if(loan.borrowers, [&](Borrower& b) { return gone.at(b.link) || ended(b); });
    if (!loan.borrowers.empty()) continue;
    for (std::byte* block : loan.blocks) arena_.release(block);
  }
  std::erase_if(loans_, [](const Loan& loan) { return loan.borrowers.empty(); });
}

bool LentMemory::lent_to(const Link& link) const {
  return std::ranges::any_of(loans_, [&](const Loan& loan) {
    return std::ranges::any_of(loan.borrowers, [&](const Borrower& b) { return b.link == &link; });
  });
}

// A peer has ended the operation once it has handled the ABORT frame.
bool LentMemory::ended(Borrower& borrower) {
  return borrower.lent == 0 || borrower.link->port().lender()->handled(borrower.told);
}

void LentMemory::forget_links() { loans_.clear(); }

std::map<std::string, std::uint64_t> LentMemory::withheld_by_peer() const {
  std::map<const Link*, std::set<const std::byte*>> blocks;
  for (const Loan& loan : loans_) {
    for (const Borrower& borrower : loan.borrowers)
      blocks[borrower.link].insert(loan.blocks.begin(), loan.blocks.end());
  }
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [link, lent] : blocks) {
    for (const std::byte* block : lent) bytes[link->name()] += arena_.freed_and_withheld(block);
  }
  return bytes;
}

std::uint64_t LentMemory::withheld_bytes() const {
  std::set<const std::byte*> blocks;
  for (const Loan& loan : loans_) blocks.insert(loan.blocks.begin(), loan.blocks.end());
  std::uint64_t bytes = 0;
  for (const std::byte* block : blocks) bytes += arena_.freed_and_withheld(block);
  return bytes;
}

}  // namespace slackline
