#include "nn/model.hpp"

#include "base/error.hpp"

namespace fsdp {

namespace {
[[noreturn]] void no_decoding() { fail_expectation("a model without caches does not decode", std::source_location::current()); }
}  // namespace

void Model::embedding_decode(const StageContext&, const std::int32_t*, const DecodedRows&, void*) const { no_decoding(); }
void Model::block_decode(const StageContext&, std::size_t, const DecodedRows&, const void*, void*, float*,
                         const kernels::CacheShape&, void*, float*) const {
  no_decoding();
}
void Model::head_logits(const StageContext&, const void*, std::span<const std::int32_t>, float*) const { no_decoding(); }

}  // namespace fsdp
