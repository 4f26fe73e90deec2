// Names, order, shapes and initial values. The order is the same in all families. Norms begin by multiplying by 1. All other
// initial values depend on the family's InitialWeights:
//   normal           weights and embeddings normal(initializer_range), biases 0
//   residual_scaled  the same, but projections into the residual stream are divided by sqrt(2 L) (Radford et al. 2019, section
//                    2.3; GPT2PreTrainedModel._init_weights)
//   fairseq          embeddings, positions and head: normal(1 / sqrt(C)) (fairseq/models/transformer: Embedding,
//                    PositionalEmbedding, build_output_projection)
//                    attention weights: uniform in +-sqrt(6 / (in + out)) (Glorot and Bengio 2010); of q, k and v:
//                    1 / sqrt(2) times that (MultiheadAttention.reset_parameters)
//                    MLP weights, and biases of MLPs, q, k and v: uniform in +-1 / sqrt(in), as torch.nn.Linear makes them
// Adapters start with A uniform in +-1 / sqrt(in) and B zero; that of the embedding with A zero and B normal(1). This is as in
// PEFT (LoraLayer.reset_lora_parameters).
#include "nn/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "nn/patterns.hpp"

namespace fsdp {

bool is_target(std::string_view target, std::string_view module) {
  return target == "all-linear" || matches(target, module) || module.ends_with("." + std::string(target));
}

bool is_part_of(std::string_view parameter, std::string_view module) {
  for (std::size_t dot = parameter.find('.'); dot != parameter.npos; dot = parameter.find('.', dot + 1))
    if (parameter.substr(0, dot).ends_with(module)) return true;
  return false;
}

bool trains_whole(const TransformerConfig& config, std::string_view table) {
  const ParameterNames& names = find_family(config.family).names;
  const bool may_be_tied = config.tied_embeddings && (table == names.token_table || table == names.head);
  return std::any_of(config.lora.modules_to_save.begin(), config.lora.modules_to_save.end(), [&](const std::string& module) {
    return may_be_tied ? is_part_of(names.token_table, module) || is_part_of(names.head, module) : is_part_of(table, module);
  });
}

namespace {

double number_of(const std::vector<std::pair<std::string, double>>& by_name, std::string_view module, double otherwise) {
  const auto found =
      std::find_if(by_name.begin(), by_name.end(), [&](const auto& one) { return is_target(one.first, module); });
  return found == by_name.end() ? otherwise : found->second;
}

/// Returns true if a target of adapters names the embedding or the head with this module name.
bool names_table(std::string_view target, std::string_view module) {
  return target == module || module.ends_with("." + std::string(target));
}

}  // namespace

std::size_t table_rank(const TransformerConfig& config, std::string_view table) {
  const Lora& lora = config.lora;
  const std::string_view module = table.substr(0, table.rfind('.'));
  const bool is_named = lora.rank > 0 && std::any_of(lora.targets.begin(), lora.targets.end(),
                                                     [&](const std::string& target) { return names_table(target, module); });
  return is_named ? lora.rank_of(module) : 0;
}

std::size_t Lora::rank_of(std::string_view module) const {
  return static_cast<std::size_t>(number_of(ranks, module, static_cast<double>(rank)));
}
double Lora::alpha_of(std::string_view module) const { return number_of(alphas, module, alpha); }
double Lora::scale_of(std::string_view module) const {
  const auto r = static_cast<double>(rank_of(module));
  return alpha_of(module) / (rank_stabilized ? std::sqrt(r) : r);
}
std::size_t Lora::most_rank() const {
  std::size_t most = rank;
  for (const auto& [module, other] : ranks) most = std::max(most, static_cast<std::size_t>(other));
  return most;
}

namespace {

class Builder {
 public:
  explicit Builder(const TransformerConfig& config)
      : config_(config), family_(find_family(config.family)), names_(family_.names) {}

  ModelParameters build() {
    const std::size_t C = config_.width;
    const auto rows = [&](const std::string& name) {
      return (trains_whole(config_, name) ? config_ : without_adapters(config_)).vocab_size;
    };
    out_.token_table = table(names_.token_table, {rows(names_.token_table), C});
    if (config_.positions == Positions::learned)
      out_.position_table = table(names_.position_table, {config_.position_offset + config_.max_positions, C});
    for (std::size_t n = 0; n < config_.layers; ++n) {
      block_ = narrow<int>(n);
      out_.blocks.push_back(block(fmt::format(fmt::runtime(names_.block), n)));
    }
    block_ = -1;
    out_.final_norm = norm(names_.final_norm);
    out_.head = config_.tied_embeddings ? out_.token_table : table(names_.head, {rows(names_.head), C});
    if (config_.lora.rank > 0) choose_whole_modules(), add_adapters();
    out_.embedding_rows = rows_of(out_.token_table, config_.lora.tokens);
    out_.head_rows = config_.tied_embeddings ? out_.embedding_rows : rows_of(out_.head, config_.lora.head_tokens);
    return std::move(out_);
  }

 private:
  int add(std::string name, Shape shape, Init init) {
    const bool decayed = shape.size() >= 2;
    out_.parameters.push_back({std::move(name), std::move(shape), init, decayed, block_});
    return narrow<int>(out_.parameters.size()) - 1;
  }
  int table(std::string name, Shape shape) {
    const bool by_width = family_.initial == InitialWeights::fairseq;
    return add(std::move(name), std::move(shape),
               normal(by_width ? 1 / std::sqrt(static_cast<float>(config_.width)) : config_.initializer_range));
  }
  int vector(std::string name, std::size_t n, Init init) { return add(std::move(name), {n}, init); }

  enum class Projection { qkv, attention_out, ffn_in, ffn_out };
  Init initial_weight(Projection kind, std::size_t in, std::size_t out) const {
    const auto fan_in = static_cast<float>(in);
    const bool residual = kind == Projection::attention_out || kind == Projection::ffn_out;
    switch (family_.initial) {
      case InitialWeights::normal:
        return normal(config_.initializer_range);
      case InitialWeights::residual_scaled:
        return normal(config_.initializer_range * (residual ? 1 / std::sqrt(2 * static_cast<float>(config_.layers)) : 1));
      case InitialWeights::fairseq:
        break;
    }
    if (kind == Projection::ffn_in || kind == Projection::ffn_out) return uniform(1 / std::sqrt(fan_in));
    return uniform(std::sqrt((kind == Projection::qkv ? 3 : 6) / (fan_in + static_cast<float>(out))));
  }
  Init initial_bias(Projection kind, std::size_t in) const {
    if (family_.initial != InitialWeights::fairseq || kind == Projection::attention_out) return constant(0);
    return uniform(1 / std::sqrt(static_cast<float>(in)));
  }

  Init initial_gain() const { return constant(1 - config_.gain_offset); }
  Norm norm(const std::string& name) {
    Norm norm;
    norm.gain = vector(name + ".weight", config_.width, initial_gain());
    if (config_.norm == NormKind::layer) norm.bias = vector(name + ".bias", config_.width, constant(0));
    return norm;
  }
  Linear linear(const std::string& name, Projection kind, std::size_t in, std::size_t out, bool bias) {
    Linear linear{.in = in, .out = out, .stored = out, .layout = family_.weights};
    linear.weight = add(name + ".weight", linear.layout == WeightLayout::in_out ? Shape{in, out} : Shape{out, in},
                        initial_weight(kind, in, out));
    out_.parameters.back().quantized = config_.base_type;
    if (bias) linear.bias = vector(name + ".bias", out, initial_bias(kind, in));
    linear.index = projections_++;
    return linear;
  }
  /// Projections of one input to outputs of these widths. If there is only one name, one matrix has them all, next to each
  /// other.
  LinearGroup group(const std::string& block, const std::vector<std::string>& names, Projection kind,
                    std::vector<std::size_t> widths, bool bias) {
    LinearGroup group;
    if (names.size() == 1) {
      const std::size_t all = std::accumulate(widths.begin(), widths.end(), std::size_t{0});
      const Linear whole = linear(block + names[0], kind, config_.width, all, bias);
      if (kind == Projection::qkv || widths.size() == 1) {
        group.part[group.size++] = whole;
        return group;
      }
      // Gate and up are computed separately, because the activation function has separate matrices.
      expect(whole.layout == WeightLayout::out_in && !bias, "gate and up are rows of one matrix");
      for (std::size_t first = 0; first < all; first += widths[group.size], ++group.size) {
        group.part[group.size] = whole;
        group.part[group.size].out = widths[group.size], group.part[group.size].first = first;
      }
      return group;
    }
    expect(names.size() == widths.size(), "a family has names for all its projections");
    for (; group.size < names.size(); ++group.size)
      group.part[group.size] = linear(block + names[group.size], kind, config_.width, widths[group.size], bias);
    return group;
  }

  BlockParameters block(const std::string& name) {
    const std::size_t C = config_.width, F = config_.ffn_width, q = config_.heads * config_.head_size,
                      kv = config_.kv_heads * config_.head_size;
    BlockParameters block;
    projections_ = 0;
    block.norm1 = norm(name + names_.norm1);
    block.qkv = group(name, names_.qkv, Projection::qkv, {q, kv, kv}, config_.qkv_bias);
    if (config_.qk_norm) {
      block.q_norm.gain = vector(name + names_.q_norm + ".weight", config_.head_size, initial_gain());
      block.k_norm.gain = vector(name + names_.k_norm + ".weight", config_.head_size, initial_gain());
    }
    block.attention_out = linear(name + names_.attention_out, Projection::attention_out, q, C, config_.attention_out_bias);
    if (config_.branch_norms) block.attention_norm = norm(name + names_.attention_norm);
    block.norm2 = norm(name + names_.norm2);
    const bool gated = is_gated(config_.activation);
    block.ffn_in = group(name, names_.ffn_in, Projection::ffn_in, gated ? std::vector{F, F} : std::vector{F}, config_.mlp_bias);
    block.ffn_out = linear(name + names_.ffn_out, Projection::ffn_out, F, C, config_.mlp_bias);
    if (config_.branch_norms) block.ffn_norm = norm(name + names_.ffn_norm);
    return block;
  }

  /// The projections of a block.
  static std::vector<Linear*> projections(BlockParameters& block) {
    std::vector<Linear*> all;
    for (LinearGroup* group : {&block.qkv, &block.ffn_in})
      for (std::size_t i = 0; i < group->size; ++i) all.push_back(&group->part[i]);
    all.insert(all.end(), {&block.attention_out, &block.ffn_out});
    std::sort(all.begin(), all.end(), [](const Linear* a, const Linear* b) { return a->index < b->index; });
    return all;
  }
  static std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }
  std::string module_of(const Linear& linear) const {
    return module_of(out_.parameters[static_cast<std::size_t>(linear.weight)].name);
  }

  /// Marks the parameters of Lora::modules_to_save.
  void choose_whole_modules() {
    for (const std::string& module : config_.lora.modules_to_save) {
      bool used = false;
      for (std::size_t p = 0; p < out_.parameters.size(); ++p) {
        Parameter& parameter = out_.parameters[p];
        const bool is_tied_head =
            static_cast<int>(p) == out_.token_table && config_.tied_embeddings && is_part_of(names_.head, module);
        if (!is_tied_head && !is_part_of(parameter.name, module)) continue;
        if (parameter.quantized)
          throw UserError(
              format("`modules to save` '{}' means {}, which is kept quantized (only adapters of it can be trained); leave it "
                     "out, or leave out `type of the base model`",
                     module, parameter.name));
        used = parameter.is_adapter = true;
      }
      if (!used)
        throw UserError(
            format("`modules to save` '{}' matches no module (such as lm_head, embed_tokens or norm); correct it", module));
    }
  }

  int add_matrix(std::string name, Shape shape, Init init) {
    const int index = add(std::move(name), std::move(shape), init);
    out_.parameters.back().is_adapter = true;
    return index;
  }

  /// Adds the adapter of the embedding or the head, if a target names it.
  Linear table_adapter(const std::string& table) {
    const std::string module = module_of(table);
    const Lora& lora = config_.lora;
    const bool is_head = table == names_.head;
    const std::size_t rank = table_rank(config_, table), V = config_.vocab_size, C = config_.width;
    if (rank == 0) return {};
    const bool trains_rows = !(is_head && !config_.tied_embeddings ? lora.head_tokens : lora.tokens).empty();
    if (trains_rows || trains_whole(config_, table))
      throw UserError(format(
          "{} is in `targets of adapters`, and {} (a table is trained by an adapter, by rows or as a whole); leave one out",
          module, trains_rows ? "rows of it are trained, too" : "in `modules to save`"));
    Linear adapter{.in = is_head ? C : V, .out = is_head ? V : C};
    adapter.rank = rank, adapter.scale = static_cast<float>(lora.scale_of(module));
    const Init of_a = is_head ? uniform(1 / std::sqrt(static_cast<float>(C))) : constant(0);
    adapter.lora_a = add_matrix(module + (is_head ? lora_a_suffix : embedding_a_suffix), {rank, adapter.in}, of_a);
    adapter.lora_b = add_matrix(module + (is_head ? lora_b_suffix : embedding_b_suffix), {adapter.out, rank},
                                is_head ? constant(0) : normal(1));
    return adapter;
  }

  void add_adapters() {
    const Lora& lora = config_.lora;
    for (const std::size_t layer : lora.layers)
      if (layer >= config_.layers)
        throw UserError(
            format("`layers with adapters` has {} (the model has layers 0 to {}); correct it", layer, config_.layers - 1));
    std::vector<bool> used(lora.targets.size());
    std::vector<std::string> supported;  // the last parts of the names of projections that can have adapters
    for (const Linear* const linear : projections(out_.blocks.front())) {
      const std::string module = module_of(*linear), last_part = module.substr(module.rfind('.') + 1);
      const bool is_new = std::find(supported.begin(), supported.end(), last_part) == supported.end();
      if (linear->out == linear->stored && is_new) supported.push_back(last_part);
    }
    for (std::size_t b = 0; b < out_.blocks.size(); ++b) {
      if (!lora.layers.empty() && std::find(lora.layers.begin(), lora.layers.end(), b) == lora.layers.end()) continue;
      BlockParameters& parameters = out_.blocks[b];
      block_ = narrow<int>(b);
      const auto is_key = [&](const Linear* linear) { return parameters.qkv.size > 1 && linear == &parameters.qkv.part[1]; };
      for (Linear* const linear : projections(parameters)) {
        const std::string module = module_of(*linear);
        bool chosen = lora.targets.empty() && linear->index < parameters.qkv.size && !is_key(linear);
        for (std::size_t i = 0; i < lora.targets.size(); ++i)
          if (is_target(lora.targets[i], module)) used[i] = chosen = true;
        if (!chosen) continue;
        if (out_.parameters[static_cast<std::size_t>(linear->weight)].is_adapter)
          throw UserError(
              format("{} is in `modules to save` and in `targets of adapters` (it is trained as a whole, or by an adapter); "
                     "leave it out of one",
                     module));
        if (linear->out != linear->stored)
          throw UserError(
              format("adapters of {} are not supported (it has the gate and the up projection in one matrix); use adapters of "
                     "other projections: {}",
                     module, fmt::join(supported, ", ")));
        linear->rank = lora.rank_of(module), linear->scale = static_cast<float>(lora.scale_of(module));
        linear->lora_a = add_matrix(module + lora_a_suffix, {linear->rank, linear->in},
                                    uniform(1 / std::sqrt(static_cast<float>(linear->in))));
        linear->lora_b = add_matrix(module + lora_b_suffix, {linear->out, linear->rank}, constant(0));
      }
    }
    block_ = -1;
    out_.embedding_adapter = table_adapter(names_.token_table), out_.head_adapter = table_adapter(names_.head);
    for (const std::string* const table : {&names_.token_table, &names_.head}) {
      const std::string module = module_of(*table);
      for (std::size_t i = 0; i < used.size(); ++i)
        if (names_table(lora.targets[i], module)) used[i] = true;
      supported.push_back(module.substr(module.rfind('.') + 1));
    }
    for (std::size_t i = 0; i < used.size(); ++i)
      if (!used[i])
        throw UserError(format("`targets of adapters` '{}' matches no module (those that can have adapters are {}); correct it",
                               lora.targets[i], fmt::join(supported, ", ")));
    for (const auto& [what, numbers] : {std::pair("ranks", &lora.ranks), std::pair("alphas", &lora.alphas)})
      for (const auto& [name, number] : *numbers)
        if (std::none_of(out_.parameters.begin(), out_.parameters.end(), [&, &name = name](const Parameter& parameter) {
              const std::size_t end = parameter.name.find(".lora_");
              return end != std::string::npos && is_target(name, parameter.name.substr(0, end));
            }))
          throw UserError(format("`{} of adapters` '{}' matches no module with an adapter; correct it", what, name));
  }

  /// The rows of a table, some of which are those of an adapter, which this adds.
  std::vector<TableRows> rows_of(int table, const std::vector<std::size_t>& tokens) {
    const std::size_t V = out_.parameters[static_cast<std::size_t>(table)].shape[0];
    if (tokens.empty()) return {{0, V, table, 0}};
    block_ = -1;
    const Parameter& whole = out_.parameters[static_cast<std::size_t>(table)];
    if (whole.is_adapter)
      throw UserError(format("{} is in `modules to save`, and rows of it are trained, too (they are part of it); leave out one",
                             whole.name));
    const int own =
        add(whole.name.substr(0, whole.name.rfind('.')) + token_rows_suffix, {tokens.size(), config_.width}, whole.init);
    out_.parameters.back().is_adapter = true;
    std::vector<std::pair<std::size_t, std::size_t>> replaced;  // tokens and their rows of the adapter, in order of tokens
    for (std::size_t i = 0; i < tokens.size(); ++i) replaced.emplace_back(tokens[i], i);
    std::sort(replaced.begin(), replaced.end());
    std::vector<TableRows> rows;
    std::size_t done = 0;
    const auto keep_until = [&](std::size_t token) {
      if (done < std::min(token, V)) rows.push_back({done, std::min(token, V) - done, table, done});
    };
    for (const auto& [token, row] : replaced) {
      keep_until(token);
      if (!rows.empty() && rows.back().parameter == own && rows.back().first + rows.back().count == token &&
          rows.back().row + rows.back().count == row)
        ++rows.back().count;
      else
        rows.push_back({token, 1, own, row});
      done = token + 1;
    }
    keep_until(V);
    return rows;
  }

  const TransformerConfig& config_;
  const Family& family_;
  const ParameterNames& names_;
  ModelParameters out_;
  int block_ = -1;
  std::size_t projections_ = 0;  // of the block so far
};

}  // namespace

std::size_t Parameter::kept_numel() const {
  return quantized ? kernels::QuantizedParts(*quantized, matrix_shape()).end / sizeof(float) : numel(shape);
}

std::vector<std::vector<std::size_t>> parameters_by_stage(const ModelParameters& model) {
  std::vector<std::vector<std::size_t>> stages(model.blocks.size() + 2);
  const auto use = [](std::vector<std::size_t>& stage, int index) {
    if (index >= 0) stage.push_back(static_cast<std::size_t>(index));
  };
  for (const int index :
       {model.token_table, model.position_table, model.embedding_adapter.lora_a, model.embedding_adapter.lora_b})
    use(stages.front(), index);
  for (std::size_t p = 0; p < model.parameters.size(); ++p)
    if (model.parameters[p].block >= 0) stages[static_cast<std::size_t>(model.parameters[p].block) + 1].push_back(p);
  for (const int index :
       {model.final_norm.gain, model.final_norm.bias, model.head, model.head_adapter.lora_a, model.head_adapter.lora_b})
    use(stages.back(), index);
  for (const auto& [rows, stage] :
       {std::pair(&model.embedding_rows, &stages.front()), std::pair(&model.head_rows, &stages.back())})
    for (const TableRows& some : *rows)
      if (std::find(stage->begin(), stage->end(), static_cast<std::size_t>(some.parameter)) == stage->end())
        use(*stage, some.parameter);
  return stages;
}

ModelParameters list_parameters(const TransformerConfig& config) { return Builder(config).build(); }

std::size_t parameter_count(const TransformerConfig& config) {
  std::size_t count = 0;
  for (const Parameter& parameter : list_parameters(config).parameters) count += numel(parameter.shape);
  return count;
}

}  // namespace fsdp
