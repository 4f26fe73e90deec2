// When a run saves, where, and which of its checkpoints stay.
#pragma once

#include <cstddef>
#include <filesystem>

#include "h5/h5.hpp"

namespace fsdp {

struct SaveOptions {
  std::filesystem::path folder = "checkpoints";
  std::size_t interval_updates = 0;  // 0: at the end and on request only
  double interval_s = 0;             // likewise
  bool training_waits = false;
  h5::Compression compression = h5::Compression::none;
  std::size_t keep_last = 0, keep_every = 0;  // 0: all; none beside the last
  /// Whether saves are written while training goes on: those by interval; those on request alone are not worth the memory.
  bool meanwhile() const { return !training_waits && (interval_updates > 0 || interval_s > 0); }
};

}  // namespace fsdp
