#include "layers/proof.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string_view>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/device.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_problems = 8, samples_per_part = 64;

/// The bits of the NaN that `memory` is filled with. The upper half of that in fp32 is that in bf16.
template <class Bits>
Bits bits_of(Unwritten memory, DType type) {
  if (memory == Unwritten::batch) return static_cast<Bits>(0xfff1fff1u);
  const auto number = static_cast<std::uint32_t>(memory);
  if (type == DType::f16) return static_cast<Bits>(0x7e51 + number);
  const std::uint32_t bf16 = 0x7fe1 + number;
  return static_cast<Bits>(sizeof(Bits) == 2 ? bf16 : bf16 << 16 | 0x4f50);
}

/// Calls `work(row, span)` with the bits of each row.
template <class Work>
void for_each_row(const Tensor& numbers, const Work& work) {
  const auto rows_of = [&]<class Bits>(Bits*) -> void {
    for (std::size_t r = 0; r < numbers.rows; ++r)
      work(r, std::span(static_cast<Bits*>(numbers.data) + r * numbers.stride, numbers.columns));
  };
  size_of(numbers.type) == 4 ? rows_of(static_cast<std::uint32_t*>(nullptr)) : rows_of(static_cast<std::uint16_t*>(nullptr));
}

/// A tensor's numbers in host memory: its own, or a copy of a GPU's.
class HostCopy {
 public:
  enum class Reads { no, yes };
  HostCopy(Stream& stream, const Tensor& tensor, Reads reads = Reads::yes) : stream_(stream), there_(tensor), here(tensor) {
    if (is_host(stream.kind())) return;
    copy_.resize(((tensor.rows - 1) * tensor.stride + tensor.columns) * size_of(tensor.type));
    here.data = copy_.data();
    if (reads == Reads::yes || !tensor.is_dense()) copy(here.data, there_.data);
  }
  /// Writes the numbers back.
  void put() {
    if (!copy_.empty()) copy(there_.data, here.data);
  }

 private:
  void copy(void* to, const void* from) {
    stream_.copy(to, from, copy_.size());
    stream_.synchronize();
  }
  Stream& stream_;
  const Tensor there_;
  std::vector<std::byte> copy_;

 public:
  Tensor here;
};

}  // namespace

void fill_unwritten(const Tensor& numbers, Unwritten memory) {
  for_each_row(numbers, [&]<class Bits>(std::size_t, std::span<Bits> row) -> void {
    std::fill(row.begin(), row.end(), bits_of<Bits>(memory, numbers.type));
  });
}

Remaining find_unwritten(const Tensor& numbers, Unwritten memory) {
  Remaining left;
  for_each_row(numbers, [&]<class Bits>(std::size_t r, std::span<Bits> row) -> void {
    const Bits wanted = bits_of<Bits>(memory, numbers.type);
    const auto n = static_cast<std::size_t>(std::count(row.begin(), row.end(), wanted));
    if (n > 0 && left.count == 0)
      left.row = r, left.column = static_cast<std::size_t>(std::find(row.begin(), row.end(), wanted) - row.begin());
    left.count += n;
  });
  return left;
}

std::string describe(const Remaining& left, const Tensor& numbers, const char* name) {
  return format("does not write {} of {} numbers of {} (the first is in row {}, column {}); write all of {}", left.count,
                numbers.numel(), name, left.row, left.column, name);
}

std::vector<float> numbers_of(Stream& stream, const Tensor& tensor) {
  std::vector<float> all;
  if (!tensor) return all;
  const HostCopy copy(stream, tensor);
  all.reserve(tensor.numel());
  for (std::size_t r = 0; r < tensor.rows; ++r)
    for (std::size_t c = 0; c < tensor.columns; ++c) all.push_back(copy.here.get(r, c));
  return all;
}

void Proof::begin(Of list, std::size_t parameters) {
  *this = {};
  list_ = list;
  touched_.resize(parameters), gradients_.resize(parameters);
}

void Proof::note(const std::string& problem) {
  std::string whole = part_ + ": " + problem;
  if (problems_.size() < most_problems && std::find(problems_.begin(), problems_.end(), whole) == problems_.end())
    problems_.push_back(std::move(whole));
}

std::string Proof::problems() const { return format("{}", fmt::join(problems_, "\n")); }

void Proof::fill(Stream& stream, const Tensor& numbers, Unwritten memory) const {
  if (!numbers) return;
  HostCopy copy(stream, numbers, HostCopy::Reads::no);
  fill_unwritten(copy.here, memory);
  copy.put();
}

void Proof::inspect(Stream& stream, const Tensor& result, const std::string& function, const std::string& name) {
  HostCopy copy(stream, result);
  const Remaining left = find_unwritten(copy.here, Unwritten::result);
  if (left.count > 0) note(format("{} {}", function, describe(left, result, name.c_str())));
  std::size_t found = left.count;
  const auto find = [&](Unwritten memory, const char* what) {
    const Remaining read = find_unwritten(copy.here, memory);
    if (read.count > 0) note(format("{} computes {}[{}, {}] from {}", function, name, read.row, read.column, what));
    found += read.count;
  };
  find(Unwritten::saved, "memory of saved or stats that forward() has not written; write it in forward()");
  find(Unwritten::scratch, "scratch memory that it has not written in this pass; write it first");
  if (found == 0) return;
  for_each_row(copy.here, [&]<class Bits>(std::size_t, std::span<Bits> row) -> void {
    for (const Unwritten memory : {Unwritten::result, Unwritten::saved, Unwritten::scratch})
      std::replace(row.begin(), row.end(), bits_of<Bits>(memory, result.type), Bits{0});
  });
  copy.put();
}

void Proof::note_outputs(const Pass& pass, const Tensor& y, std::initializer_list<Tensor> kept) {
  if (is_comparison()) {
    const std::vector<float> numbers = numbers_of(*pass.stream, y);
    double squares = 0;
    for (const float number : numbers) squares += static_cast<double>(number) * static_cast<double>(number);
    sampled_.emplace_back(part_, y.type);
    samples_.push_back(std::sqrt(squares / static_cast<double>(std::max<std::size_t>(numbers.size(), 1))));
    for (std::size_t i = 1; i < samples_per_part; ++i)
      samples_.push_back(numbers.empty() ? 0 : static_cast<double>(numbers[i * numbers.size() / samples_per_part]));
  }
  if (!is_update()) return;
  std::size_t hash = 0;
  const auto add = [&](const Tensor& tensor) {
    if (!tensor) return;
    const HostCopy copy(*pass.stream, tensor);
    const std::string_view bytes(static_cast<const char*>(copy.here.data), tensor.numel() * size_of(tensor.type));
    hash = hash * 31 + std::hash<std::string_view>()(bytes);
  };
  add(y);
  for (const Tensor& tensor : kept) add(tensor);
  const auto [place, is_new] = outputs_.emplace(std::pair(part_, pass.first_sequence), hash);
  if (!is_new && place->second != hash)
    note(
        "forward() gives other numbers when it is computed again for backward (they must depend only on the pass: random "
        "numbers follow from its seed, update, place and rows, and x must not be changed); correct forward()");
}

void Proof::prepare_gradient(Stream& stream, const Tensor& gradient, std::size_t index, bool is_new) const {
  if (!is_update() || (!is_new && touched_[index] == Touched::yes)) return;
  HostCopy copy(stream, gradient, HostCopy::Reads::no);
  std::fill_n(copy.here.floats(), gradient.numel(), -0.0f);
  copy.put();
}

void Proof::inspect_gradient(Stream& stream, const Tensor& gradient, std::size_t index, const std::string& function,
                             const std::string& parameter) {
  if (!is_update()) return;
  HostCopy copy(stream, gradient);
  const std::span<float> numbers(copy.here.floats(), gradient.numel());
  const bool is_left = std::all_of(numbers.begin(), numbers.end(), [](float g) { return g == 0 && std::signbit(g); });
  if (!is_left || touched_[index] == Touched::unknown) touched_[index] = is_left ? Touched::no : Touched::yes;
  gradients_[index] = format("{}: {} adds nothing to the gradient of '{}'", part_, function, parameter);
  for (float& g : numbers) g += 0.0f;  // -0 becomes 0, as in updates without a proof
  copy.put();
  inspect(stream, gradient, function, format("the gradient of '{}'", parameter));
}

void Proof::compare_scales(const std::vector<float>& half, const std::vector<float>& whole, std::size_t columns, float scale,
                           const std::string& name) {
  float largest = 0;
  for (const float g : half) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < half.size(); ++i)
    if (std::isfinite(whole[i]) && std::abs(whole[i] - 2 * half[i]) > 4e-3f * largest)  // fp16 may overflow
      return note(
          format("evaluate() gives {} for {}[{}, {}] with scale {}, and {} with scale {} (dx and the gradients are those of "
                 "scale times the losses); multiply them by scale",
                 whole[i], name, i / columns, i % columns, scale, half[i], scale / 2));
}

std::vector<std::int64_t> Proof::untouched() const {
  std::vector<std::int64_t> all;
  for (const Touched touched : touched_) all.push_back(touched == Touched::no ? 1 : 0);
  return all;
}

void Proof::note_untouched(const std::vector<std::int64_t>& ranks, int all) {
  for (std::size_t p = 0; p < ranks.size(); ++p)
    if (ranks[p] == all && problems_.size() < most_problems)
      problems_.push_back(gradients_[p] + "; add to it, or freeze the parameter");
}

std::string Proof::describe_difference(const std::vector<double>& of_first) const {
  for (std::size_t i = 0; i < samples_.size() && i < of_first.size(); ++i) {
    const auto& [part, type] = sampled_[i / samples_per_part];
    const double size = of_first[i / samples_per_part * samples_per_part], mine = samples_[i], theirs = of_first[i];
    const double most = (type == DType::f32 ? 1e-2 : 0.2) * size;
    if (!std::isfinite(size)) return {};  // the loss will be refused
    if (!(std::abs(mine - theirs) <= most))
      return format(
          "{} gives {:.6g} here and {:.6g} on rank 0 for the same batch (a number of its output, or the root mean square of "
          "all; all ranks train one model, so they must compute the same function); correct what differs",
          part, mine, theirs);
  }
  return {};
}

}  // namespace fsdp
