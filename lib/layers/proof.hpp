// Finds results that a user's function, layer or loss leaves unwritten, when it is called for the first time. Internal.
#pragma once

#include <string>

#include "device/device.hpp"
#include "layers/layer.hpp"

namespace fsdp {

/// Fills a dense tensor with numbers that no computation gives: NaN in each type, and negative integers.
void make_unwritten(const Tensor& result);
/// Throws UserError if some numbers of a dense tensor are still unwritten. `who` should have written them.
void require_written(const Tensor& result, const char* name, const std::string& who);
/// Sets the numbers that are still unwritten to 0. If all are, changes nothing and returns false.
bool clear_unwritten(const Tensor& result);

/// Runs the pass `function` of a layer or loss; of its inner layer `inner`, unless that is empty. In update 1 on CPUs, throws
/// UserError if the pass does not write all of `result`, which is dense. It is not checked if it is memory of an operand, too.
template <class Work>
void run_pass(const Pass& pass, const char* function, const std::string& inner, const Tensor& result, const char* name,
              const Tensor& operand, const Work& work) {
  const bool checks = pass.update == 1 && is_host(pass.stream->kind()) && result.is_dense() && result.data != pass.x.data &&
                      result.data != operand.data;
  if (checks) make_unwritten(result);
  work();
  if (checks) require_written(result, name, inner.empty() ? function : function + (" of '" + inner + "'"));
}

}  // namespace fsdp
