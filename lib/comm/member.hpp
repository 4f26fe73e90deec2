// The base class of the communicators: rank and size, each rank's share of a buffer, and the count of sent bytes.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// The binomial tree of a broadcast. Ranks are counted from the root: relative_rank = (rank - root) mod size. tree_parent()
/// returns the parent of `relative_rank`. tree_children() returns the number of children; they are relative_rank + 2^k for k =
/// 0, ..., children-1, and all are below `size`.
inline int tree_parent(int relative_rank) { return relative_rank & (relative_rank - 1); }
inline int tree_children(int relative_rank, int size) {
  int children = 0;
  while ((relative_rank & (1 << children)) == 0 && relative_rank + (1 << children) < size) ++children;
  return children;
}

/// Cuts `whole` into pieces of `length` elements, and returns piece number `piece`, from 0. Pieces after the end of `whole`
/// are empty.
inline Range piece_of(Range whole, std::size_t piece, std::size_t length) {
  const std::size_t begin = std::min(whole.end, whole.begin + piece * length);
  return {begin, std::min(whole.end, begin + length)};
}
inline std::size_t pieces_in(std::size_t n, std::size_t length) { return (n + length - 1) / length; }

class GroupMember : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  const Traffic& traffic() const final { return traffic_; }
  Buffer allocate(Device& device, std::size_t bytes) override {
    return agree(*this, [&] { return device.allocate(bytes); });
  }

 protected:
  GroupMember(int rank, int size) : rank_(rank), size_(size) {}

  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  std::size_t me() const { return static_cast<std::size_t>(rank_); }
  /// Returns the share of `rank`: in a reduction of `total` elements, the range of elements that this rank adds up. All shares
  /// are equal if size() divides `total`.
  Range share_of(std::size_t total, std::size_t rank) const { return share(total, ranks(), rank); }

  void count(Collective kind, std::size_t bytes) { traffic_.count(kind, bytes); }
  int relative_to(int root) const { return (rank_ - root + size_) % size_; }

  void expect_usable(const Stream& stream) const {
    expect(is_host(stream.kind()), "this backend moves memory that the CPU reaches");
  }

 private:
  int rank_, size_;
  Traffic traffic_;
};

}  // namespace fsdp
