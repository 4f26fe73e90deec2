#include "comm/staged.hpp"

#include <cstdint>

#include "comm/agree.hpp"

namespace fsdp {

namespace {

class Staged final : public Collectives {
 public:
  Staged(Communicator& host, Device& device) : host_(host), device_(device) {}

  void all_gather(Stream& stream, const void* shard, void* whole, std::size_t shard_count, DType type) override {
    const std::size_t bytes = shard_count * size_of(type), rank = static_cast<std::size_t>(host_.rank());
    std::byte* const staged = staging(bytes * static_cast<std::size_t>(host_.size()));
    copy(stream, staged + rank * bytes, shard, bytes);
    host_.all_gather(at_once(stream), staged + rank * bytes, staged, shard_count, type);
    copy(stream, whole, staged, bytes * static_cast<std::size_t>(host_.size()));
  }

  void reduce_scatter(Stream& stream, float* whole, float* shard, std::size_t shard_count, Into into,
                      DType reduce_dtype) override {
    const std::size_t bytes = shard_count * sizeof(float), whole_bytes = bytes * static_cast<std::size_t>(host_.size());
    std::byte *const staged = staging(whole_bytes + bytes), *const part = staged + whole_bytes;
    if (into == Into::add) stream.copy(part, shard, bytes);
    copy(stream, staged, whole, whole_bytes);
    host_.reduce_scatter(at_once(stream), reinterpret_cast<float*>(staged), reinterpret_cast<float*>(part), shard_count, into,
                         reduce_dtype);
    copy(stream, shard, part, bytes);
  }

  void all_reduce(Stream& stream, float* data, std::size_t count, DType reduce_dtype) override {
    reduce(
        stream, data, count, [&](float* staged) { host_.all_reduce(at_once(stream), staged, count, reduce_dtype); },
        reduce_dtype == DType::f32);
  }
  void all_reduce(Stream& stream, double* data, std::size_t count) override {
    reduce(stream, data, count, [&](double* staged) { host_.all_reduce(at_once(stream), staged, count); });
  }
  void all_reduce(Stream& stream, std::int64_t* data, std::size_t count) override {
    reduce(stream, data, count, [&](std::int64_t* staged) { host_.all_reduce(at_once(stream), staged, count); });
  }

  Buffer allocate(Device& device, std::size_t bytes) override {
    return agree(host_, [&] { return device.allocate(bytes); });
  }
  std::size_t staging_bytes() const override { return host_.staging_bytes() + staging_.bytes(); }
  const Traffic& traffic() const override { return host_.traffic(); }

 private:
  std::byte* staging(std::size_t bytes) {
    if (bytes > staging_.bytes()) {
      staging_ = {};
      staging_ = device_.allocate_staging(bytes);
    }
    return staging_.data();
  }

  /// Returns an inline stream, on which the collective in host memory runs; its `subject` is set to that of `stream`.
  Stream& at_once(const Stream& stream) {
    at_once_->subject = stream.subject;
    return *at_once_;
  }

  /// Returns after the copy is complete, because all collectives use the same staging buffer.
  static void copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
    stream.copy(to, from, bytes);
    stream.synchronize();
  }

  template <class T, class Reduce>
  void reduce(Stream& stream, T* data, std::size_t count, const Reduce& reduce_staged, bool travels_as_it_is = true) {
    if (host_.size() == 1 && travels_as_it_is) return;
    auto* const staged = reinterpret_cast<T*>(staging(count * sizeof(T)));
    copy(stream, staged, data, count * sizeof(T));
    reduce_staged(staged);
    copy(stream, data, staged, count * sizeof(T));
  }

  Communicator& host_;
  Device& device_;
  const std::shared_ptr<Stream> at_once_ = make_host_stream();
  Buffer staging_;
};

}  // namespace

std::unique_ptr<Collectives> make_staged(Communicator& host, Device& device) { return std::make_unique<Staged>(host, device); }

}  // namespace fsdp
