#include "record/tensorboard.hpp"

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

template <class T>
std::string bytes_of(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

/// The checksum of records: CRC-32C, rotated and shifted so that a checksum of data with checksums is not weak.
std::string masked_crc(std::string_view data) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(data.data(), data.size());
  const auto sum = static_cast<std::uint32_t>(crc.checksum());
  return bytes_of(std::rotr(sum, 15) + 0xa282ead8u);
}

// The parts of a message in the encoding of Protocol Buffers: a key of field number and wire type, then the value.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string whole_field(int number, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3) + varint(value);
}
std::string double_field(int number, double value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 1) + bytes_of(value);
}
std::string float_field(int number, float value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 5) + bytes_of(value);
}
std::string text_field(int number, std::string_view value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(value.size()) + std::string(value);
}

// The field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr int wall_time = 1, step_number = 2, file_version = 3, summary = 5, session_log = 7, summary_value = 1, value_tag = 1,
              simple_value = 2, session_status = 1;
constexpr std::uint64_t session_starts = 1;

}  // namespace

std::vector<Scalar> tensorboard_scalars(const nlohmann::json& line, int ranks) {
  std::vector<Scalar> out;
  const std::string type = text_at(line, "type");
  const auto add = [&](const char* key, const char* tag, double factor = 1) {
    const double number = number_at(line, key);
    if (std::isfinite(number)) out.push_back({tag, factor * number});  // the file has null for other numbers
  };
  if (type == "train") {
    add("loss", "loss_metrics/global_avg_loss");
    add("max_loss", "loss_metrics/global_max_loss");
    add("gnorm", "grad_norm");
    add("lr", "lr");
    add("tokens", "n_tokens_seen");
    add("positions_per_second", "throughput(tps)", 1.0 / ranks);
    add("mfu", "mfu(%)", 100);
    add("ms", "time_metrics/end_to_end(s)", 1e-3);
    add("data_wait_ms", "time_metrics/data_loading(s)", 1e-3);
    add("comm_exposed_ms", "time_metrics/exposed_communication(s)", 1e-3);
    add("mem_peak_bytes", "memory/max_active(GiB)", std::ldexp(1.0, -30));
    add("loss_scale", "loss_scale");
    add("mean_token_accuracy", "train/mean_token_accuracy");  // this and the next tags are TRL's
    add("entropy", "train/entropy");
  } else if (type == "valid") {
    add("loss", "validation_metrics/loss");
    add("mean_token_accuracy", "eval/mean_token_accuracy");
    add("entropy", "eval/entropy");
  }
  return out;
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  folder_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0)
    throw UserError(format("cannot make the folder '{}' ({}); give another folder for TensorBoard's files", folder.string(),
                           std::strerror(errno)));
  if (::flock(folder_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(folder_);
    throw UserError(
        format("another program writes TensorBoard's files to '{}'; give each run a folder of its own", folder.string()));
  }
  // TensorBoard reads the files of a folder in the order of their names.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  path_ = folder / format("events.out.tfevents.{:010}.{}.{}.{}", std::chrono::duration_cast<std::chrono::seconds>(now).count(),
                          host_name(), ::getpid(),
                          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() % 1'000'000'000);
  file_ = std::fopen(path_.c_str(), "wxe");
  if (!file_) {
    const std::string why = std::strerror(errno);
    ::close(folder_);
    throw UserError(format("cannot write '{}' ({}); give another folder for TensorBoard's files", path_.string(), why));
  }
  const double seconds = std::chrono::duration<double>(now).count();
  record(double_field(wall_time, seconds) + text_field(file_version, "brain.Event:2"));
}

TensorBoardFile::~TensorBoardFile() {
  std::fclose(file_);
  ::close(folder_);
}

void TensorBoardFile::begin(double time, std::uint64_t step) {
  record(double_field(wall_time, time) + whole_field(step_number, step) +
         text_field(session_log, whole_field(session_status, session_starts)));
}

void TensorBoardFile::add(double time, std::uint64_t step, std::span<const Scalar> scalars) {
  if (scalars.empty()) return;
  std::string values;
  for (const Scalar& scalar : scalars)
    values += text_field(summary_value,
                         text_field(value_tag, scalar.tag) + float_field(simple_value, static_cast<float>(scalar.value)));
  record(double_field(wall_time, time) + whole_field(step_number, step) + text_field(summary, values));
}

void TensorBoardFile::record(std::string_view data) {
  if (failed_) return;
  const std::string length = bytes_of(static_cast<std::uint64_t>(data.size()));
  const std::string whole = length + masked_crc(length) + std::string(data) + masked_crc(data);
  if (std::fwrite(whole.data(), 1, whole.size(), file_) != whole.size() || std::fflush(file_) != 0) failed_ = true;
}

}  // namespace fsdp
