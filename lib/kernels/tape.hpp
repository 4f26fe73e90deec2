// Runs a list of steps on rows, for recorded layers and losses (layers/tape.hpp). A step computes rows of one matrix from the
// same rows of up to three others. All steps of a list are done for one tile of rows after another, so that what only they read
// stays in a thread's cache. Numbers of tiles are fp32. Conventions are those of kernels.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace fsdp::kernels {

/// What a step computes of its operands a, b and c, and of its numbers k and m. Names with _backward compute the derivative of
/// an operand: a is the gradient of the result.
enum class TapeOp : std::uint8_t {
  fill,      // k
  label,     // the row's label, as a number
  position,  // the row's number modulo `n`
  load,      // a row of numbers in the type of the pass
  store,     // writes such a row, rounded
  copy,      // a
  affine,    // k a + m
  exp,
  log,
  sqrt,
  square,
  abs,
  tanh,
  sigmoid,
  relu,
  silu,
  gelu_tanh,
  gelu_erf,
  clamp,  // at least k, at most m
  add,
  subtract,
  multiply,
  divide,
  min,
  max,
  is_less,  // 1 if a < b, else 0
  is_equal,
  where,    // a != 0 ? b : c
  row_max,  // of all columns; row sums are copies with `sums`
  log_sum_exp,
  softmax,
  log_softmax,
  cross_entropy,  // log_sum_exp(a) - a[index]; 0 if the index is negative
  pick,           // a[index]; 0 if the index is negative
  count_loss,     // a, or 0 if the row's label is negative
  loss_backward,  // the scale of the loss, or 0 if the row's label is negative
  log_backward,   // a / b
  sqrt_backward,  // a / (2 c) with the result c
  square_backward,
  abs_backward,
  tanh_backward,     // with the result c
  sigmoid_backward,  // with the result c
  relu_backward,
  silu_backward,
  gelu_tanh_backward,
  gelu_erf_backward,
  clamp_backward,
  divisor_backward,  // -a c / b with the divisor b and the result c
  min_backward,      // for the smaller one of b and c: b. Half of it if both are equal
  max_backward,
  where_backward,    // b != 0 ? a : 0
  else_backward,     // b != 0 ? 0 : a
  row_max_backward,  // equal shares for all columns of b that are the largest one, c
  log_sum_exp_backward,
  softmax_backward,        // with the result c
  log_softmax_backward,    // with the result c
  cross_entropy_backward,  // with the operand b and the result c
  pick_backward,           // adds to one column
};

/// Where an operand is. `offset` is in bytes from the beginning of its space, and rows are `stride` numbers apart; 0: all rows
/// are one. `one_column`: the row is one number, which is used for all columns.
struct TapeOperand {
  std::uint32_t space = none, slot = none;  // slot: only for the planner (layers/tape_plan.cpp)
  std::size_t offset = 0, stride = 0;
  bool one_column = false;

  static constexpr std::uint32_t none = 0xffffffffu;
};

struct TapeStep {
  TapeOp op = TapeOp::copy;
  bool adds = false;  // adds to `out` instead of overwriting it
  bool sums = false;  // the result is the sum over the columns
  bool once = false;  // only for the first row of a tile
  bool flat = false;  // the rows of all operands are adjacent: a tile is one long row
  TapeOperand out = {}, a = {}, b = {}, c = {};
  std::size_t columns = 0;
  float k = 0, m = 0;
  std::size_t n = 0, label = 0;  // an index is the row's number modulo n, or, if n is 0, the row's label number `label`
  bool own = false;              // the row's number is counted from TapeSpaces::first_row
  std::uint64_t serves = ~std::uint64_t{0};  // bits of the gradients for which the step is needed
};

/// Each parameter of a recording has a bit of TapeStep::serves.
inline constexpr std::uint32_t most_tape_parameters = 62;

/// Spaces. Parameter i is in weights_space + i, and its gradient in gradients_space + i.
enum TapeSpace : std::uint32_t {
  tile_space,
  sums_space,
  saved_space,
  stats_space,
  scratch_space,
  x_space,
  y_space,  // in backward: its gradient
  dx_space,
  targets_space,
  all_space,  // rows of all ranks, and their gradient
  all_dx_space,
  weights_space,
  gradients_space = weights_space + most_tape_parameters,
  tape_spaces = gradients_space + most_tape_parameters
};

struct TapeSpaces {
  void* at[tape_spaces] = {};  // tiles and sums are in TapeRun
  DType type = DType::f32;
  const std::int32_t* labels = nullptr;
  std::size_t labels_of_row = 0, first_row = 0;
  float loss_scale = 1;
};

/// The rows are divided into tiles, and the tiles into parts. On a CPU a thread does several parts, on a GPU a block of threads
/// does one. The number of parts determines the order of sums over rows, so it does not depend on the processor.
struct TapeRun {
  static constexpr std::size_t tile_rows = 16, most_parts = 64, most_parts_on_gpu = 256, temporaries = 4;

  const TapeStep* steps = nullptr;   // in host memory, which must not change before the stream has done the run
  TapeStep* steps_on_gpu = nullptr;  // on a GPU: room for `count` steps, which run_tape() copies there
  std::size_t count = 0, rows = 0, parts = 0;
  std::uint64_t wanted = ~std::uint64_t{0};  // steps that serve none of these bits are left out
  std::size_t widest = 0;                    // columns; a tile begins with `temporaries` rows of so many
  float* tiles = nullptr;                    // [threads, tile_floats], or on a GPU [parts, tile_floats]
  std::size_t tile_floats = 0;
  float* sums = nullptr;  // [parts, sum_floats]: sums over the rows of each part
  std::size_t sum_floats = 0;
  TapeSpaces spaces = {};

  static constexpr std::size_t tiles_of(std::size_t rows) { return (rows + tile_rows - 1) / tile_rows; }
  static constexpr std::size_t parts_of(std::size_t rows, bool on_gpu) {
    const std::size_t most = on_gpu ? most_parts_on_gpu : most_parts;
    return tiles_of(rows) < most ? tiles_of(rows) : most;
  }
};

void run_tape(Stream& stream, const TapeRun& run);

/// out[n] (=, +=) the sum of sums[parts, stride] over the parts, in their order.
template <class E>
void finish_sums(Stream& stream, E* out, const float* sums, std::size_t parts, std::size_t stride, std::size_t n, Write write);

/// out[C,R] (=, +=) the transpose of in[R,C].
template <class E>
void transpose_matrix(Stream& stream, E* out, const E* in, std::size_t R, std::size_t C, Write write);

/// Rows of a table[N,C] for R rows: row `labels[r * labels_of_row]`, or, if labels is null, r mod N.
struct TapeRows {
  const std::int32_t* labels;
  std::size_t labels_of_row, n, R, C;
};
/// out[r,:] = table[row of r,:]; 0 if it is negative.
template <class E>
void gather_rows(Stream& stream, E* out, const E* table, const TapeRows& rows);
/// d_table[row of r,:] += d[r,:], in the order of r.
template <class D, class E>
void scatter_rows(Stream& stream, D* d_table, const E* d, const TapeRows& rows);

}  // namespace fsdp::kernels
