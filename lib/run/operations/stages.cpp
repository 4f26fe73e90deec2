// The operations that run stages of the model, and their operands: those of micro-batches, then those of a decoding step, which
// is the forward pass of new tokens of some sequences, with key-value caches. A rank without new tokens only takes part in the
// gathers.
#include <functional>

#include "kernels/update_sums.hpp"
#include "nn/work.hpp"
#include "plan/check/gradient_states.hpp"
#include "plan/traffic.hpp"
#include "run/operations/running.hpp"

namespace fsdp {

namespace {

using enum OperandName;
using enum Effect;

std::size_t block_of(const Operation& op) { return static_cast<std::size_t>(op.block); }

/// The numbers that a pass of a layer gathers. Passes outside of updates gather nothing.
std::size_t gathers_of(const Query& q) {
  const auto [first, end] = std::pair(q.plan.update.data(), q.plan.update.data() + q.plan.update.size());
  const bool trains = !std::less<>()(&q.op, first) && std::less<>()(&q.op, end);
  return trains && !q.sizes.gathers.empty() ? q.sizes.gathers[block_of(q.op)] : 0;
}
bool gathers(const Query& q) { return gathers_of(q) > 0; }
Amount amount_gathered(const Query& q) {
  return gathers(q) ? Amount{.count = gathers_of(q), .group = GroupAxis::world} : Amount{};
}

StageContext context_of(const Running& r) {
  StageContext context{r.stream,
                       r.rank.weights,
                       r.op.find(gradients) ? r.rank.gradients : r.rank.no_gradients,
                       r.at<float>(scratch),
                       r.at<const float>(tables),
                       r.shape,
                       r.scalars.dropout,
                       r.rank.types().parameter,
                       r.at<const std::int32_t>(positions),
                       r.scalars.loss_terms,
                       r.at<float>(cheap),
                       r.op.block >= 0 && block_of(r.op) < r.rank.plan.blocks_in_pieces,
                       r.rank.largest.T,
                       {r.at(all_outputs), r.at<const std::int32_t>(all_targets), r.at<float>(all_dx),
                        static_cast<std::size_t>(r.rank.mesh->world->rank())},
                       r.inner,
                       {},
                       0};
  if (r.op.find(in_layers)) context.layers = {&group_of(r.op, *r.rank.mesh), r.at<float>(in_layers)};
  if (r.scalars.dropout.update > 0)
    context.following = static_cast<std::size_t>(r.rank.plan.update.back().micro_batch - r.op.micro_batch);
  context.dropout.first_sequence +=
      static_cast<std::uint64_t>(r.op.micro_batch) * static_cast<std::uint64_t>(r.rank.mesh->world->size()) * r.shape.B;
  return context;
}

const BlockStage& block_of(const Running& r) { return *r.rank.model.blocks[block_of(r.op)]; }

/// `sums` is an operand only in the first micro-batch of an update, which sets the sums to zero.
bool is_first(const Query& q) { return q.op.micro_batch == 0; }

constexpr OperandSpec of_read_batch[] = {
    {tokens, reads}, {inputs, overwrites}, {targets, overwrites}, {positions, overwrites}, {sums, overwrites, is_first}};

void run_read_batch(const Running& r) {
  const BatchLayout batch = r.rank.batch(r.shape.B);
  const std::byte* const memory =
      r.at<std::byte>(tokens) + r.batch_begin + static_cast<std::size_t>(r.op.micro_batch) * batch.bytes();
  const auto present = [&](std::size_t bytes) { return bytes / r.rank.largest.T * r.shape.T; };
  r.stream.copy(r.at(inputs), memory, present(batch.inputs));
  r.stream.copy(r.at(targets), memory + batch.inputs, present(batch.targets));
  if (batch.positions > 0) r.stream.copy(r.at(positions), memory + batch.inputs + batch.targets, present(batch.positions));
  if (auto* const all = r.at<UpdateSums>(sums)) kernels::clear(r.stream, *all);
}

constexpr OperandSpec of_embedding_forward[] = {
    {inputs, reads}, {positions, reads}, {tables, reads}, {x_out, overwrites}, {scratch, clobbers, nullptr, true},
    {weights, reads}};
constexpr OperandSpec of_block_forward[] = {
    {x, reads},          {positions, reads},  {tables, reads},     {x_out, overwrites},
    {saved, overwrites}, {scratch, clobbers}, {cheap, overwrites}, {in_layers, clobbers, gathers},
    {weights, reads}};
constexpr OperandSpec of_head[] = {{x, reads},           {targets, reads},        {dx, overwrites},     {scratch, clobbers},
                                   {all_outputs, reads}, {all_targets, reads},    {all_dx, overwrites}, {sums, changes},
                                   {weights, reads},     {gradients, contributes}};
constexpr OperandSpec of_head_for_inputs[] = {{x, reads},           {targets, reads},     {dx, overwrites},
                                              {scratch, clobbers},  {all_outputs, reads}, {all_targets, reads},
                                              {all_dx, overwrites}, {sums, changes},      {weights, reads}};
constexpr OperandSpec of_head_loss[] = {{x, reads},           {targets, reads},     {scratch, clobbers},
                                        {all_outputs, reads}, {all_targets, reads}, {sums, changes},
                                        {losses, overwrites}, {report, overwrites}, {weights, reads}};
constexpr OperandSpec of_recompute[] = {{x, reads},
                                        {positions, reads},
                                        {tables, reads},
                                        {saved, overwrites},
                                        {scratch, clobbers},
                                        {x_out, overwrites, nullptr, true},
                                        {in_layers, clobbers, gathers},
                                        {weights, reads}};
constexpr OperandSpec of_recompute_cheap[] = {
    {x, reads}, {saved, reads}, {cheap, overwrites}, {scratch, clobbers}, {weights, reads}};
constexpr OperandSpec of_block_backward[] = {
    {x, reads},        {positions, reads},      {tables, reads},   {dx, changes},
    {saved, consumes}, {scratch, clobbers},     {cheap, consumes}, {in_layers, clobbers, gathers},
    {weights, reads},  {gradients, contributes}};
constexpr OperandSpec of_block_backward_for_inputs[] = {{x, reads},        {positions, reads}, {tables, reads},
                                                        {dx, changes},     {saved, consumes},  {scratch, clobbers},
                                                        {cheap, consumes}, {weights, reads}};
constexpr OperandSpec of_embedding_backward[] = {
    {inputs, reads},         {positions, reads}, {dx, reads}, {scratch, clobbers}, {weights, reads, nullptr, true},
    {gradients, contributes}};

void forward_embedding(const Running& r) {
  r.rank.model.first->forward(context_of(r), r.at<const std::int32_t>(inputs), r.at(x_out));
}
void forward_block(const Running& r) { block_of(r).forward(context_of(r), r.at(x), r.at(x_out), r.at<float>(saved)); }
void recompute_cheap_of_block(const Running& r) {
  if (const Recomputation* const model = r.rank.model.recomputation)
    model->recompute_cheap(context_of(r), block_of(r.op), r.at(x), r.at<float>(saved));
}
void backward_block(const Running& r) { block_of(r).backward(context_of(r), r.at(x), r.at<float>(saved), r.at(dx), r.write()); }
void backward_embedding(const Running& r) {
  r.rank.model.first->backward(context_of(r), r.at<const std::int32_t>(inputs), r.at(dx), r.write());
}
void head_and_loss(const Running& r) {
  const auto scale = static_cast<float>(r.scalars.loss_scale / r.scalars.tokens);
  r.rank.model.loss->forward_backward(context_of(r), r.at(x), r.at<const std::int32_t>(targets), scale,
                                      r.at<UpdateSums>(sums)->loss, r.at(dx), r.write());
}
void head_and_loss_forward(const Running& r) {
  auto* const all = r.at<UpdateSums>(sums);
  r.rank.model.loss->forward(context_of(r), r.at(x), r.at<const std::int32_t>(targets), all->loss, r.at<float>(losses));
  r.stream.copy(r.at(report), all, sizeof(UpdateSums));
}

constexpr OperandSpec of_read_rows[] = {{step, reads}, {inputs, overwrites}, {rows, overwrites}};
constexpr OperandSpec of_embedding_decode[] = {{step, reads},   {inputs, reads},     {rows, reads},
                                               {tables, reads}, {x_out, overwrites}, {scratch, clobbers, nullptr, true},
                                               {weights, reads}};
constexpr OperandSpec of_block_decode[] = {{step, reads},     {x, reads},          {rows, reads},     {tables, reads},
                                           {cache, changes},  {x_out, overwrites}, {saved, clobbers}, {scratch, clobbers},
                                           {cheap, clobbers}, {weights, reads}};
constexpr OperandSpec of_head_logits[] = {
    {step, reads}, {x, reads}, {scratch, clobbers}, {logits, overwrites}, {weights, reads}};

/// The rows of a step are one sequence for the stages; rows_of() has their places.
StageContext decoding_context_of(const Running& r) {
  StageContext context = context_of(r);
  context.shape = {1, r.step.tokens.size()}, context.longest = 0;
  return context;
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
  r.rank.model.decoding->embedding_decode(decoding_context_of(r), r.at<const std::int32_t>(inputs), rows_of(r), r.at(x_out));
}

void decode_block(const Running& r) {
  const auto block = static_cast<std::size_t>(r.op.block);
  DecodedRows of_step = rows_of(r);
  if (block + 1 == r.rank.model.blocks.size()) of_step.wanted = r.step.wanted;
  r.rank.model.decoding->block_decode(decoding_context_of(r), block, of_step, r.at(x), r.at(x_out), r.at<float>(saved),
                                      r.rank.plan.cache, r.at(cache));
}

void make_logits(const Running& r) {
  r.rank.model.decoding->head_logits(decoding_context_of(r), r.at(x), r.step.wanted, r.at<float>(logits));
}

using CostOf = Cost(const Operation&, const Costing&);

template <Cost (StageWork::*work)() const>
Cost cost_of(const Operation&, const Costing& costing) {
  return (costing.stages.*work)();
}
template <Cost (StageWork::*work)(std::size_t) const>
Cost cost_of_block(const Operation& op, const Costing& costing) {
  return (costing.stages.*work)(block_of(op));
}
bool in_pieces(const Operation& op, const Costing& costing) { return block_of(op) < costing.blocks_in_pieces; }
Cost cost_of_recomputing(const Operation& op, const Costing& costing) {
  return op.find(x_out) ? costing.stages.forward(block_of(op)) : costing.stages.recompute(block_of(op), in_pieces(op, costing));
}
Cost cost_of_backward(const Operation& op, const Costing& costing) {
  return costing.stages.backward(block_of(op), in_pieces(op, costing));
}

constexpr Kind row(std::string_view name, UpdatePart part, Subject subject, std::span<const OperandSpec> operands,
                   void run(const Running&), CostOf cost, char letter, Drawing drawn = Drawing::as_forward) {
  return {.name = name,
          .part = part,
          .subject = subject,
          .operands = operands,
          .run = run,
          .cost = cost,
          .drawing = letter == ' ' ? Drawing::not_at_all : drawn,
          .letter = letter};
}
/// Completes the kind of a block that may gather during its passes.
constexpr Kind of_layer(Kind kind) {
  kind.amount = amount_gathered, kind.collective = Collective::all_gather;
  return kind;
}
/// Completes the kind of a stage that contributes to gradients.
constexpr Kind contributing(Kind kind) {
  kind.follow = protocol<&GradientStates::contribute>;
  return kind;
}

}  // namespace

namespace kinds {

constinit const Kind read_batch =
    row("read batch", UpdatePart::other, Subject::nothing, of_read_batch, run_read_batch, nullptr, ' ');
constinit const Kind embedding_forward =
    row("forward embedding", UpdatePart::forward, Subject::first_stage, of_embedding_forward, forward_embedding,
        cost_of<&StageWork::embedding_forward>, 'E');
constinit const Kind block_forward = of_layer(row("forward", UpdatePart::forward, Subject::block, of_block_forward,
                                                  forward_block, cost_of_block<&StageWork::forward>, 'F'));
constinit const Kind head = contributing(
    row("head and loss", UpdatePart::forward, Subject::head, of_head, head_and_loss, cost_of<&StageWork::head>, 'H'));
constinit const Kind head_loss = row("head and loss, forward", UpdatePart::forward, Subject::head, of_head_loss,
                                     head_and_loss_forward, cost_of<&StageWork::head>, 'H');
constinit const Kind recompute =
    of_layer(row("recompute", UpdatePart::again, Subject::block, of_recompute, forward_block, cost_of_recomputing, 'f'));
constinit const Kind recompute_cheap = row("recompute cheap part", UpdatePart::again, Subject::block, of_recompute_cheap,
                                           recompute_cheap_of_block, cost_of<&StageWork::recompute_cheap>, ' ');
constinit const Kind block_backward =
    of_layer(contributing(row("backward", UpdatePart::backward, Subject::block, of_block_backward, backward_block,
                              cost_of_backward, 'B', Drawing::as_backward)));
constinit const Kind embedding_backward =
    contributing(row("backward embedding", UpdatePart::backward, Subject::first_stage, of_embedding_backward,
                     backward_embedding, cost_of<&StageWork::embedding_backward>, 'E'));

// The cost of gradients of inputs is not predicted, nor that of decoding.
constinit const Kind head_for_inputs =
    row("head and loss, for inputs", UpdatePart::forward, Subject::head, of_head_for_inputs, head_and_loss, nullptr, 'H');
constinit const Kind block_backward_for_inputs =
    row("backward for inputs", UpdatePart::backward, Subject::block, of_block_backward_for_inputs, backward_block, nullptr, 'B',
        Drawing::as_backward);
constinit const Kind read_rows =
    row("read rows", UpdatePart::other, Subject::nothing, of_read_rows, with_rows<read_step>, nullptr, ' ');
constinit const Kind embedding_decode = row("decode embedding", UpdatePart::forward, Subject::first_stage, of_embedding_decode,
                                            with_rows<decode_embedding>, nullptr, 'E');
constinit const Kind block_decode =
    row("decode", UpdatePart::forward, Subject::block, of_block_decode, with_rows<decode_block>, nullptr, 'F');
constinit const Kind head_logits =
    row("logits", UpdatePart::forward, Subject::head, of_head_logits, with_rows<make_logits>, nullptr, 'H');

}  // namespace kinds

}  // namespace fsdp
