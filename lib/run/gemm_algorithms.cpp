#include "run/gemm_algorithms.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "comm/agree.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "kernels/silent.hpp"
#include "run/executor.hpp"

namespace fsdp {

namespace {

class ProductRecorder final : public kernels::SilentKernels {
 public:
  explicit ProductRecorder(Stream& real) : real_(real) {}
  bool takes(Stream&, const kernels::Product& product) const override { return real_.kernels()->takes(real_, product); }
  void gemm(Stream&, const kernels::Product& product) const override { found.push_back(product); }

  mutable std::vector<kernels::Product> found;

 private:
  Stream& real_;
};

const char* text_of(kernels::Epilogue::Kind epilogue) {
  using enum kernels::Epilogue::Kind;
  switch (epilogue) {
    case none:
      break;
    case bias:
      return " and bias";
    case gelu_gradient:
      return " and GELU's gradient";
    case sums_of_a:
      return " and sums of a";
    case sums_of_b:
      return " and sums of b";
  }
  return "";
}

/// Describes everything that the choice of an algorithm depends on.
std::string shape_text(const kernels::Product& p) {
  const auto transposed = [](kernels::Trans trans) { return trans == kernels::Trans::yes ? "T" : "N"; };
  return format("{} to {} m {} n {} k {} a {} {} b {} {} out {} {} aligned {}{}", name_of(p.type), name_of(p.out_type), p.m,
                p.n, p.k, transposed(p.trans_a), p.lda, transposed(p.trans_b), p.ldb, p.ldo,
                p.write == kernels::Write::add ? "add" : "overwrite", p.alignment(), text_of(p.epilogue.kind));
}

std::string hex_of(const kernels::GemmAlgorithm& algorithm) {
  std::string text;
  for (const unsigned char byte : algorithm) text += format("{:02x}", byte);
  return text;
}

/// Returns false if `text` is not an algorithm.
bool read_hex(std::string_view text, kernels::GemmAlgorithm& algorithm) {
  if (text.size() != 2 * algorithm.size()) return false;
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    if (std::from_chars(begin, begin + 2, algorithm[i], 16).ptr != begin + 2) return false;
  }
  return true;
}

constexpr std::string_view first_line = "GEMM algorithms of fsdp, format 1\n", made_on = "made on ", sum_of = "checksum ";

/// The algorithm of each product. Keys are shape_text().
using Algorithms = std::map<std::string, kernels::GemmAlgorithm>;

std::string lines_of(const Algorithms& algorithms) {
  std::string text;
  for (const auto& [shape, algorithm] : algorithms) text += format("{}: {}\n", shape, hex_of(algorithm));
  return text;
}

/// Returns the text of a file: a line with the device, a line for each product, and the checksum of all lines before it.
std::string text_of(const Algorithms& algorithms, const std::string& device) {
  const std::string text = format("{}{}{}\n{}", first_line, made_on, device, lines_of(algorithms));
  return format("{}{}{}\n", text, sum_of, checksum_text(checksum(text.data(), text.size())));
}

/// The reverse of text_of(). Throws UserError if the file was made on another device, or is not what text_of() returns.
Algorithms read_algorithms(const std::filesystem::path& file, const std::string& text, const std::string& device) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(
        format("{} cannot be used as `file of algorithms` ({}); name a file that does not exist, and it will be made",
               file.string(), why));
  };
  const auto sum_line = text.rfind(sum_of);
  if (!text.starts_with(first_line)) refuse("it does not begin like a file of GEMM algorithms");
  if (sum_line == std::string::npos ||
      text.substr(sum_line) != format("{}{}\n", sum_of, checksum_text(checksum(text.data(), sum_line))))
    refuse("its checksum is wrong: it was changed or is damaged");
  Algorithms algorithms;
  std::string_view rest = std::string_view(text).substr(first_line.size(), sum_line - first_line.size());
  const auto next_line = [&] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return line;
  };
  if (const std::string_view line = next_line(); line != format("{}{}", made_on, device))
    refuse(format("it was {}, and this run computes on {}", line, device));
  while (!rest.empty()) {
    const std::string_view line = next_line();
    const auto end = line.rfind(": ");
    kernels::GemmAlgorithm algorithm{};
    if (end == std::string_view::npos || !read_hex(line.substr(end + 2), algorithm))
      refuse(format("'{}' is not a shape with its algorithm", line));
    algorithms.emplace(line.substr(0, end), algorithm);
  }
  return algorithms;
}

}  // namespace

std::vector<kernels::Product> Executor::products() {
  const ProductRecorder recorder(compute_stream());
  kernels::SilentStream recording(recorder);
  const UpdateScalars scalars = {.tokens = 1};
  for (const auto* list : {&plan_.update, &plan_.evaluation, &plan_.input_gradients})
    for (const Operation& op : *list)
      if (op.stream == StreamId::compute && op.find(OperandName::weights))
        op.kind->run({facts_, recording, op, scalars, step_, 0, shape_of(*list)});
  return std::move(recorder.found);
}

void check_gemm_algorithms(const std::filesystem::path& file, DeviceKind kind) {
  if (!file.empty() && is_host(kind))
    throw UserError("`file of algorithms` needs a GPU (its file has algorithms of cuBLASLt); leave it out");
}

std::string use_gemm_algorithms(const std::filesystem::path& file, const std::vector<kernels::Product>& products,
                                Stream& stream, const Device& device, Communicator& world) {
  const std::string here = device.description();
  require_same(world, here, [&](const std::string& first) {
    throw UserError(
        format("rank {} computes on {}, and rank 0 on {} (one `file of algorithms` is for all ranks); use nodes "
               "with the same GPUs and libraries, or leave it out",
               world.rank(), here, first));
  });
  std::map<std::string, kernels::Product> shapes;
  for (const kernels::Product& product : products) shapes.emplace(shape_text(product), product);
  std::string text = agree(world, [&] {
    if (world.rank() != 0) return std::string();
    const bool exists = kind_of(file) != PathKind::missing;
    Algorithms algorithms = exists ? read_algorithms(file, read_text_file(file), here) : Algorithms();
    const std::size_t known = algorithms.size();
    if (!exists) write_text_file_durably(file, text_of(algorithms, here));  // if that is impossible, nothing need be timed
    for (const auto& [shape, product] : shapes)
      if (!algorithms.contains(shape)) algorithms[shape] = stream.kernels()->fastest_algorithm(stream, product);
    if (algorithms.size() > known) write_text_file_durably(file, text_of(algorithms, here));
    return text_of(algorithms, here);
  });
  text = world.broadcast(std::move(text), 0);
  return agree(world, [&] {
    const Algorithms algorithms = read_algorithms(file, text, here);
    Algorithms used;
    for (const auto& [shape, product] : shapes) {
      const auto found = algorithms.find(shape);
      if (found == algorithms.end()) continue;  // a product that rank 0 does not have
      stream.kernels()->use_algorithm(stream, product, found->second);
      used.insert(*found);
    }
    const std::string lines = lines_of(used);
    return checksum_text(checksum(lines.data(), lines.size()));
  });
}

std::string describe_changed_algorithms(const std::string& before, const std::string& now) {
  if (before == now) return "";
  const auto described = [](const std::string& sum) {
    return sum.empty() ? "without a file of algorithms" : format("by a file of algorithms with checksum {}", sum);
  };
  return format(
      "the results will not have the same bits as those of a run that was never stopped: matrix products were "
      "computed {} before, and are computed {} now",
      described(before), described(now));
}

}  // namespace fsdp
