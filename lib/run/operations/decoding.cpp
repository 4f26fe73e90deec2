// Operations of a decoding step: the forward pass of new tokens of some sequences, with key-value caches. A rank without new
// tokens only takes part in the gathers.
#include "base/error.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

constexpr OperandSpec of_read_rows[] = {{step, reads}, {inputs, overwrites}, {rows, overwrites}};
constexpr OperandSpec of_embedding_decode[] = {{step, reads},   {inputs, reads},     {rows, reads},
                                               {tables, reads}, {x_out, overwrites}, {weights, reads}};
constexpr OperandSpec of_block_decode[] = {{step, reads},     {x, reads},          {rows, reads},     {tables, reads},
                                           {cache, changes},  {x_out, overwrites}, {saved, clobbers}, {scratch, clobbers},
                                           {cheap, clobbers}, {weights, reads}};
constexpr OperandSpec of_head_logits[] = {
    {step, reads}, {x, reads}, {scratch, clobbers}, {logits, overwrites}, {weights, reads}};

StageContext decoding_context(const Running& r) {
  return {.stream = r.stream,
          .weights = r.rank.weights,
          .gradients = r.rank.gradients,
          .scratch = r.at<float>(scratch),
          .tables = r.at<const float>(tables),
          .shape = {1, r.step.tokens.size()},
          .dropout = r.scalars.dropout,
          .type = r.rank.types().parameter,
          .cheap = r.at<float>(cheap)};
}

DecodedRows rows_of(const Running& r) {
  const auto* const there = r.at<const std::int32_t>(rows);
  return {r.step.sequences, r.step.positions, there, there + r.step.tokens.size()};
}

/// Runs `work` if the rank has new tokens.
template <void (*work)(const Running&)>
void with_rows(const Running& r) {
  if (!r.step.tokens.empty()) work(r);
}

void read_step(const Running& r) {
  const std::size_t R = r.step.tokens.size();
  r.stream.copy(r.at(inputs), r.step.tokens.data(), R * sizeof(std::int32_t));
  r.stream.copy(r.at(rows), r.step.sequences.data(), R * sizeof(std::int32_t));
  r.stream.copy(r.at<std::int32_t>(rows) + R, r.step.positions.data(), R * sizeof(std::int32_t));
}

void decode_embedding(const Running& r) {
  r.rank.model.decoding->embedding_decode(decoding_context(r), r.at<const std::int32_t>(inputs), rows_of(r), r.at(x_out));
}

void decode_block(const Running& r) {
  const auto block = static_cast<std::size_t>(r.op.block);
  DecodedRows of_step = rows_of(r);
  if (block + 1 == r.rank.model.blocks.size()) of_step.wanted = r.step.wanted;
  r.rank.model.decoding->block_decode(decoding_context(r), block, of_step, r.at(x), r.at(x_out), r.at<float>(saved),
                                      r.rank.plan.cache, r.at(cache));
}

void make_logits(const Running& r) {
  r.rank.model.decoding->head_logits(decoding_context(r), r.at(x), r.step.wanted, r.at<float>(logits));
}

/// The cost of decoding is not predicted, and updates have none of these operations.
Cost not_predicted(const Operation&, const Costing&) {
  fail_expectation("a step of decoding has no cost", std::source_location::current());
}

constexpr Kind row(std::string_view name, Subject subject, std::span<const OperandSpec> operands, void run(const Running&),
                   char letter) {
  return {.name = name,
          .part = letter == ' ' ? UpdatePart::other : UpdatePart::forward,
          .subject = subject,
          .operands = operands,
          .run = run,
          .cost = not_predicted,
          .drawing = letter == ' ' ? Drawing::not_at_all : Drawing::as_forward,
          .letter = letter};
}

}  // namespace

namespace kinds {

constinit const Kind read_rows = row("read rows", Subject::nothing, of_read_rows, with_rows<read_step>, ' ');
constinit const Kind embedding_decode =
    row("decode embedding", Subject::first_stage, of_embedding_decode, with_rows<decode_embedding>, 'E');
constinit const Kind block_decode = row("decode", Subject::block, of_block_decode, with_rows<decode_block>, 'F');
constinit const Kind head_logits = row("logits", Subject::head, of_head_logits, with_rows<make_logits>, 'H');

}  // namespace kinds

}  // namespace fsdp
