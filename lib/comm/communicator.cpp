#include "comm/communicator.hpp"

namespace fsdp {

bool all_agree(Communicator& comm, Stream& stream, bool mine) {
  std::int64_t dissenters = mine ? 0 : 1;
  comm.all_reduce(stream, &dissenters, 1);
  return dissenters == 0;
}

}  // namespace fsdp
