#include "files/checksum.hpp"

#include <xxhash.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp {

std::uint64_t checksum(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }
std::string checksum_text(std::uint64_t checksum) { return format("{:016x}", checksum); }

RunningSum::RunningSum()
    : state_(XXH3_createState(), [](XXH3_state_s* state) { return static_cast<int>(XXH3_freeState(state)); }) {
  reset();
}
void RunningSum::add(const void* data, std::size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
std::uint64_t RunningSum::value() const { return XXH3_64bits_digest(state_.get()); }
void RunningSum::reset() { expect(state_ && XXH3_64bits_reset(state_.get()) == XXH_OK, "XXH3 starts"); }

FileSum sum_file(const std::filesystem::path& path, const std::function<void(std::size_t)>& piece_done) {
  const InputFile file(path);
  RunningSum sum;
  each_piece(file, 0, file.size(), [&](const char* data, std::size_t bytes) {
    sum.add(data, bytes);
    if (piece_done) piece_done(bytes);
  });
  return {file.size(), sum.value()};
}

}  // namespace fsdp
