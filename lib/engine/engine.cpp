#include "engine/engine.hpp"

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/version.hpp"
#include "engine/memory.hpp"
#include "run/host_states.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

Engine::Engine(std::shared_ptr<const Model> model, EngineOptions options, Communicator& world, bool saves_meanwhile,
               SaveListener listener)
    : described_(std::move(model)),
      options_(std::move(options)),
      world_(world),
      saves_meanwhile_(saves_meanwhile && !options_.sharding.plan.places.on_disk()),
      policy_(options_, *described_, world.rank(), progress_),
      saver_(world, std::move(listener), options_.comm.timeout_s) {
  make_model();
}

void Engine::make_model() {
  ++plans_;
  std::shared_ptr<const Model> model = described_;
  if (options_.memory_limit > 0 || options_.recompute_to_fit > 0) model = fit_memory();
  model_.emplace(std::move(model), options_.sharding, world_);
}

std::shared_ptr<const Model> Engine::fit_memory() {
  const auto ranks = static_cast<std::size_t>(world_.size()),
             of_node = world_.max(static_cast<std::size_t>(world_.split_by_node()->size()));
  return agree(world_, [&] {
    ShardingOptions& sharding = options_.sharding;
    PlanOptions& plan = sharding.plan;
    if (options_.recompute_to_fit > 0) {  // an earlier choice is made anew
      plan.recomputed_blocks = 0;
      plan.offloaded_inputs = plan.offloaded_inputs == all_inputs ? all_inputs : 0;
    }
    check_sharding(*described_, sharding, world_.size());
    const Placement& placement = find_placement(sharding.strategy);
    const MeshShape mesh =
        mesh_shape(placement, world_.size(),
                   placement.axis == ShardAxis::group && sharding.shard_group_size == 0 ? narrow<int>(of_node)
                                                                                        : sharding.shard_group_size);
    const Cluster cluster =
        ranks % of_node == 0 ? Cluster{narrow<int>(ranks / of_node), narrow<int>(of_node)} : Cluster{1, world_.size()};
    const auto fit = [&](const EngineOptions& options) {
      return fit_plan(described_, options, mesh, cluster, {.snapshot = saves_meanwhile_});
    };
    const FittedPlan fitted = fit(options_);
    if (!fitted.fits) {
      const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
      const bool limited = options_.memory_limit > 0;
      std::string instead;
      if (options_.recompute_to_fit == 0) {  // the options have chosen, and another choice may fit
        EngineOptions free = options_;
        PlanOptions& other = free.sharding.plan;
        free.recompute_to_fit = options_.memory_limit;
        other.checkpoint_activations = false, other.recomputed_blocks = other.offloaded_inputs = 0;
        if (const FittedPlan choice = fit(free); choice.fits) {
          other.recomputed_blocks = choice.recomputed_blocks, other.offloaded_inputs = choice.offloaded_inputs;
          instead = format("{} (a rank then needs {}), ", describe_choice(other), bytes(choice.memory.total()));
        }
      }
      throw UserError(format("a rank needs {}{}, and {} are {}; use {}more ranks, a smaller `micro-batch` or `sequence length`",
                             bytes(fitted.memory.total()),
                             options_.recompute_to_fit > 0 ? " even if all blocks are recomputed" : "",
                             bytes(limited ? options_.memory_limit : options_.recompute_to_fit),
                             limited ? "allowed (`memory limit`)" : "free", instead));
    }
    plan.recomputed_blocks = fitted.recomputed_blocks, plan.offloaded_inputs = fitted.offloaded_inputs;
    return fitted.model;
  });
}

void Engine::allocate(Device& device) {
  device_ = &device;
  model_->allocate(device, options_.execution, options_.comm);
  const std::size_t bytes = saves_meanwhile_ ? snapshot_bytes(model_->layout(), options_.sharding.optimizer.state_type,
                                                              world_.rank(), world_.size(), !model_->plan().averages.empty())
                                             : 0;
  saver_.set_snapshot(agree(world_, [&] { return device.allocate_staging(bytes); }));
}

void Engine::load_states(const CheckpointReader& checkpoint, bool with_optimizer, const ByteProgress& show) {
  std::vector<ShardState> wanted = executor().states();
  wanted.front() = only_units(wanted.front(), model_->layout(), true);  // adapters without their base model
  std::erase_if(wanted, [&](const ShardState& state) {
    if (state.name == average_state) return !has_average(checkpoint);
    return !with_optimizer && state.name != parameters_state;
  });
  fsdp::load_states(checkpoint, parameters(), model_->layout(), model_->shard(), wanted, show);
  if (keeps_average() && !has_average(checkpoint)) executor().begin_average();
}

void Engine::start(const std::function<bool(std::size_t)>& had_state) {
  if (had_state) note_states(progress_, parameters(), model_->layout().trained(), had_state);
  publish();
}

void Engine::publish() {
  executor().count_from(missed_updates(progress_, parameters()));
  executor().publish_parameters();
}

void Engine::freeze(const std::map<std::string, bool>& frozen) {
  const std::vector<bool> trained = model_->layout().trained();
  ShardingOptions after = options_.sharding;
  after.patterns.frozen = trained;
  after.patterns.frozen.flip();
  for (std::size_t p = 0; p < trained.size(); ++p)
    if (const auto found = frozen.find(parameters()[p].name); found != frozen.end()) after.patterns.frozen[p] = found->second;
  agree(world_, [&] { check_sharding(*described_, after, world_.size()); });
  auto trains = after.patterns.frozen;
  trains.flip();
  if (trains != trained) change_plan(std::move(after));
}

void Engine::plan_input_gradients() {
  ShardingOptions after = options_.sharding;
  if (!std::exchange(after.plan.input_gradients, true)) change_plan(std::move(after));
}

void Engine::change_plan(ShardingOptions after) {
  const std::vector<bool> trained = model_->layout().trained();
  saver_.finish();
  const HostStates states = agree(world_, [&] { return HostStates(*model_); });
  const ShardingOptions before = std::exchange(options_.sharding, std::move(after));
  saver_.set_snapshot({});
  const auto make_anew = [&] {
    is_lost_ = true;
    make_model();
    allocate(*device_);
    is_lost_ = false;
  };
  try {
    make_anew();
  } catch (const CollectiveError&) {
    options_.sharding = before;
    make_anew();
    states.copy_to(*model_);
    publish();
    throw;
  }
  states.move_to(*model_, world_);
  start([&](std::size_t p) { return trained[p]; });
}

CheckpointHeader Engine::header() const {
  const Layout& layout = model_->layout();
  return {.model = StoredModel(model_->model()),
          .progress = progress_,
          .strategy = std::string(model_->placement().name),
          .world_size = world_.size(),
          .shards = layout.shards(),
          .units = {layout.units().begin(), layout.units().end()},
          .optimizer = std::string(options_.sharding.optimizer.kind->name),
          .options_json = "{}",
          .attention = attention,
          .gemm_algorithms = model_->gemm_algorithms(),
          .model_folder = model_folder,
          .base = base,
          .version = version_string()};
}

std::filesystem::path Engine::save(const SaveOptions& options, const CheckpointHeader& header, bool wait) {
  CheckpointHeader stored = header;  // it may have been made before allocate()
  stored.gemm_algorithms = model_->gemm_algorithms();
  return saver_.save(options, stored, model_->layout(), executor().states(), wait);
}

}  // namespace fsdp
