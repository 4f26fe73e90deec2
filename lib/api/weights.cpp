#include "api/weights.hpp"

#include <algorithm>

#include "api/words.hpp"
#include "base/error.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/tensor_source.hpp"

namespace fsdp {

struct WeightsFile::Parts {
  std::unique_ptr<TensorSource> source;
};

namespace {

/// Runs `work`; messages of the library get the words of the API.
template <class Work>
auto in_words(const Work& work) {
  try {
    return work();
  } catch (const UserError& error) {
    throw UserError(in_words_of_api(error.what()));
  }
}

}  // namespace

WeightsFile::WeightsFile(const std::filesystem::path& path)
    : parts_(std::make_unique<Parts>(
          in_words([&] { return Parts{has_plain_tensors(path) ? open_plain(path) : open_model(path)}; }))) {}
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;
WeightsFile& WeightsFile::operator=(WeightsFile&&) noexcept = default;
WeightsFile::~WeightsFile() = default;

std::vector<std::string> WeightsFile::names() const {
  std::vector<std::string> names = parts_->source->names();
  std::ranges::sort(names);
  return names;
}

Shape WeightsFile::shape(const std::string& name) const {
  return in_words([&] { return parts_->source->shape(name); });
}

std::vector<float> WeightsFile::read(const std::string& name) const {
  return in_words([&] {
    std::vector<float> values(numel(parts_->source->shape(name)));
    parts_->source->read(name, {0, values.size()}, values.data());
    return values;
  });
}

}  // namespace fsdp
