#include "machine/storage_rate.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/memory_view.hpp"
#include "machine/measure.hpp"

namespace fsdp {

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20, page = 4096;

std::byte* aligned(const Buffer& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + ((page - address % page) % page);
}

/// Fills memory of the host with bytes that no file system or drive can compress.
void fill(std::byte* to, std::size_t bytes) {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at + sizeof state <= bytes; at += sizeof state) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(to + at, &state, sizeof state);
  }
}

/// The bytes of a file of `bytes` bytes that a pass reads and writes.
struct PassRanges {
  std::size_t read_end, write_begin, write_end;
  PassRanges(FilePass pass, std::size_t bytes)
      : read_end(pass == FilePass::write  ? 0
                 : pass == FilePass::both ? bytes / 2
                                          : bytes),
        write_begin(pass == FilePass::both ? bytes / 2 : 0),
        write_end(pass == FilePass::read ? 0 : bytes) {}
};

}  // namespace

StoragePasses::StoragePasses(Device& device, Storage& storage, std::size_t bytes)
    : storage_(storage), bytes_(bytes), slot_bytes_(std::min(64 * MiB, bytes / 4 / MiB * MiB)) {
  const Buffer source = device.allocate_staging(slot_bytes_);
  fill(source.data(), slot_bytes_);
  for (Direction* direction : {&reads_, &writes_}) {
    direction->stream = device.make_stream(StreamUse::storage);
    direction->memory = device.allocate(slot_bytes_);
  }
  on_stream(*writes_.stream, [&] { writes_.stream->copy(writes_.memory.data(), source.data(), slot_bytes_); });
}

void StoragePasses::run(FilePass pass) {
  const PassRanges ranges(pass, bytes_);
  reads_.end = ranges.read_end, writes_.end = ranges.write_end;
  const auto submit = [&](Direction& direction, std::size_t begin, auto work) {
    for (std::size_t at = begin; at < direction.end; at += slot_bytes_) direction.stream->submit({work, this, at});
  };
  submit(reads_, 0, [](void* context, std::size_t at) {
    auto& self = *static_cast<StoragePasses*>(context);
    self.storage_.read(*self.reads_.stream, at, self.reads_.memory.data(), std::min(self.slot_bytes_, self.reads_.end - at));
  });
  submit(writes_, ranges.write_begin, [](void* context, std::size_t at) {
    auto& self = *static_cast<StoragePasses*>(context);
    self.storage_.write(*self.writes_.stream, at, self.writes_.memory.data(),
                        std::min(self.slot_bytes_, self.writes_.end - at));
  });
  reads_.stream->synchronize();
  writes_.stream->synchronize();
}

PlainPasses::PlainPasses(const std::filesystem::path& folder, std::size_t bytes)
    : file_(open_unnamed(folder)), bytes_(bytes), memory_(allocate_host(2 * threads * MiB + page)) {
  fill(aligned(memory_), 2 * threads * MiB);
}

void PlainPasses::run(FilePass pass) {
  const PassRanges ranges(pass, bytes_);
  std::atomic<std::size_t> next_read = 0, next_write = ranges.write_begin;
  std::atomic<int> error = 0;
  const auto move = [&](auto call, std::atomic<std::size_t>& next, std::size_t end, std::byte* piece) {
    for (std::size_t at = next.fetch_add(MiB); at < end; at = next.fetch_add(MiB))
      if (const ssize_t n = call(file_, piece, MiB, static_cast<off_t>(at)); n != static_cast<ssize_t>(MiB))
        error = n < 0 ? errno : EIO;
  };
  std::vector<std::jthread> all;
  std::byte* piece = aligned(memory_);
  for (std::size_t i = 0; i < threads; ++i, piece += 2 * MiB) {
    if (ranges.read_end > 0) all.emplace_back([&, piece] { move(::pread, next_read, ranges.read_end, piece); });
    if (ranges.write_end > 0) all.emplace_back([&, piece] { move(::pwrite, next_write, ranges.write_end, piece + MiB); });
  }
  all.clear();
  if (error != 0) throw RunError(format("a plain file cannot be read or written ({})", std::strerror(error)));
}

double rate_of_pass(Group& group, std::size_t bytes, const std::function<void()>& run) {
  const double seconds = slowest(group, time_together(group, run));
  return static_cast<double>(bytes) * group.size() / seconds;
}

}  // namespace fsdp
