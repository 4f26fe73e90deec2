// The proof of the first update: finds mistakes in a user's layers and loss that training would not notice. Before a pass, its
// results and the memory that it must write first are filled with NaNs. The bits of such a NaN say which kind of memory it is,
// and arithmetic on CPUs keeps them. Internal.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layers/layer.hpp"

namespace fsdp {

/// What memory is filled with: results of a pass, memory from forward for backward, scratch, and the numbers of a batch, which
/// can be integers: they are negative then.
enum class Unwritten { result, saved, scratch, batch };

/// The numbers of a tensor that still have what fill_unwritten() wrote.
struct Remaining {
  std::size_t count = 0, row = 0, column = 0;  // the place of the first one
};
/// Both functions take tensors in host memory, with any stride.
void fill_unwritten(const Tensor& numbers, Unwritten memory);
Remaining find_unwritten(const Tensor& numbers, Unwritten memory);
/// "does not write 2 of 8 numbers of y (the first is in row 1, column 2); write all of y"
std::string describe(const Remaining& left, const Tensor& numbers, const char* name);

/// The observations of one list of operations. A Chain calls it for each pass while is_on() returns true. Not collective.
class Proof {
 public:
  enum class Of { nothing, evaluation, comparison, update };
  /// Forgets all observations. From now on, passes are checked as those of an evaluation, of an update of `parameters`
  /// parameters, or of an evaluation that all ranks run on the same batch, to compare their outputs.
  void begin(Of list, std::size_t parameters = 0);
  void end() { list_ = Of::nothing; }
  bool is_on() const { return list_ != Of::nothing; }
  bool is_comparison() const { return list_ == Of::comparison; }
  bool is_update() const { return list_ == Of::update; }
  /// Up to 8 problems, one per line; empty if there are none.
  std::string problems() const;

  /// The following calls are about this part of the model: "layer 'fc1'".
  void set_part(std::string part) { part_ = std::move(part); }
  void fill(Stream& stream, const Tensor& numbers, Unwritten memory) const;
  /// Notes what `function` left unwritten in its result, and what it computed from unwritten memory. Sets these numbers to 0,
  /// so that one mistake is not reported by several layers.
  void inspect(Stream& stream, const Tensor& result, const std::string& function, const std::string& name);
  /// Notes the outputs of the part. In an update, `kept` must be the same when it is computed again for the same sequences.
  void note_outputs(const Pass& pass, const Tensor& y, std::initializer_list<Tensor> kept);
  /// Prepares the gradient of parameter `index`, which is zero if `is_new`, and inspects it after the pass. If a pass adds
  /// anything, even 0, the gradient is no longer -0.
  void prepare_gradient(Stream& stream, const Tensor& gradient, std::size_t index, bool is_new) const;
  void inspect_gradient(Stream& stream, const Tensor& gradient, std::size_t index, const std::string& function,
                        const std::string& parameter);
  /// Notes that the numbers `half` of a gradient for half the scale are not half of `whole`.
  void compare_scales(const std::vector<float>& half, const std::vector<float>& whole, std::size_t columns, float scale,
                      const std::string& name);

  /// By parameter: 1 if nothing was added to its gradient, else 0. With the sums of these numbers over all ranks,
  /// note_untouched() notes the parameters that no rank has touched.
  std::vector<std::int64_t> untouched() const;
  void note_untouched(const std::vector<std::int64_t>& ranks, int all);
  /// Samples of the outputs of a comparison, and the difference from those of rank 0: empty, or a problem.
  std::vector<double> samples() const { return samples_; }
  std::string describe_difference(const std::vector<double>& of_first) const;

 private:
  enum class Touched { unknown, no, yes };
  void note(const std::string& problem);

  Of list_ = Of::nothing;
  std::string part_;
  std::vector<std::string> problems_;
  std::vector<Touched> touched_;                                          // by parameter
  std::vector<std::string> gradients_;                                    // by parameter, for messages
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> outputs_;  // hashes, by part and first sequence
  std::vector<double> samples_;
  std::vector<std::pair<std::string, DType>> sampled_;  // the parts
};

/// Returns the numbers of a tensor in fp32 on the host, row after row; none if there is no tensor.
std::vector<float> numbers_of(Stream& stream, const Tensor& tensor);

/// Runs the pass `function` of a layer or loss; of its inner layer `inner`, unless that is empty. The proof, if there is one,
/// inspects `result`, unless it is memory of an operand, too.
template <class Work>
void run_pass(const Pass& pass, const char* function, const std::string& inner, const Tensor& result, const char* name,
              const Tensor& operand, const Work& work) {
  Proof* const proof = pass.proof;
  const bool checks = proof && result && result.data != pass.x.data && result.data != operand.data;
  if (proof) proof->fill(*pass.stream, pass.scratch, Unwritten::scratch);
  if (checks) proof->fill(*pass.stream, result, Unwritten::result);
  work();
  if (checks) proof->inspect(*pass.stream, result, inner.empty() ? function : function + (" of '" + inner + "'"), name);
}

}  // namespace fsdp
