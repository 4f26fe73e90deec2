// A model in training: the sharded model, its progress, what changes from update to update, and the save under way.
// fsdp-train's loop and the functions of the API call it. It knows no data, signals or metrics, and uses clocks only to time
// saves. The name is that of DeepSpeed's `DeepSpeedEngine`; in fairseq it is `Trainer`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "engine/options.hpp"
#include "engine/saver.hpp"
#include "engine/update_policy.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

/// All functions are collective over world and throw CollectiveError, unless the comment of a function says otherwise.
class Engine {
 public:
  /// Makes the layout and the plan of `model`; allocates nothing. `saves_meanwhile`: save() may return before the save is
  /// complete, and needs memory for a copy of the state. `world` must outlive this object. Throws UserError.
  Engine(std::shared_ptr<const Model> model, EngineOptions options, Communicator& world, bool saves_meanwhile,
         SaveListener listener);
  Engine(const Engine&) = delete;

  /// Allocates all memory. `device` must outlive this object.
  void allocate(Device& device);
  /// Loads this rank's states; without `with_optimizer`, only the weights and their average. An average that the checkpoint
  /// does not have begins with its weights. The checkpoint must fit (engine/fit.hpp). Not collective; may throw on one rank
  /// only.
  void load_states(const CheckpointReader& checkpoint, bool with_optimizer, const ByteProgress& show = {});
  /// Publishes the weights that were initialized or loaded. `had_state(p)`: the optimizer has continued the states of parameter
  /// p; null: the progress has nothing to note. Call it before the first update of a plan.
  void start(const std::function<bool(std::size_t)>& had_state = {});
  /// Makes a new plan, in which the parameters are frozen (true) or trained (false) as named; others stay as they are. The
  /// states keep their bits. After an error, the earlier plan is used again; is_lost() returns true if even that failed.
  void freeze(const std::map<std::string, bool>& frozen);
  /// Makes a new plan, which has Plan::input_gradients, in the same way; does nothing if the plan has it.
  void plan_input_gradients();
  bool is_lost() const { return is_lost_; }

  /// The numbers of the next update. `tokens`: the targets that count (or their weights), on all ranks. Not collective.
  UpdateScalars next_update(double learning_rate, double tokens) const { return policy_.next(learning_rate, tokens); }
  /// Returns the verdict on an update that has run. `done` adds 1 to the updates, and `tokens` to the tokens of the progress.
  /// Not collective.
  Verdict judge(const UpdateResult& result, double tokens) { return policy_.judge(result, tokens); }
  /// Takes loss scale and spike statistics from the progress, after it was replaced. Not collective.
  void restore_policy() { policy_.restore(); }
  /// Runs `work`. With Weights::average, the model has the average of its weights in the meantime.
  template <class Work>
  void with(Weights weights, Work&& work);

  /// The header of a checkpoint, without options, arithmetic and files of the program. Not collective.
  CheckpointHeader header() const;
  /// Saves the current update with this header, as Saver::save() does.
  std::filesystem::path save(const SaveOptions& options, const CheckpointHeader& header, bool wait);

  // Not collective:
  const EngineOptions& options() const { return options_; }  // with what was chosen to fit the memory
  ShardedModel& model() { return *model_; }
  const ShardedModel& model() const { return *model_; }
  /// The model that was given; that of model() may have smaller pieces of logits, to fit in memory.
  const Model& described() const { return *described_; }
  Executor& executor() { return model_->executor(); }
  Progress& progress() { return progress_; }
  const Progress& progress() const { return progress_; }
  Saver& saver() { return saver_; }
  bool saves_meanwhile() const { return saves_meanwhile_; }
  bool keeps_average() const { return options_.sharding.plan.average_weights; }
  const std::vector<Parameter>& parameters() const { return model_->model().parameters(); }
  /// How many plans there were: freeze() makes a new one.
  std::uint64_t plans() const { return plans_; }

  std::string model_folder;       // the Hugging Face folder that the model came from; else empty
  std::optional<BaseModel> base;  // of adapters, once it is known
  std::string attention;          // the library that computes attention; empty: the kernels of fsdp

 private:
  void make_model();
  /// Chooses what fits the memory that the options allow: sharding.plan.recomputed_blocks, and the model that is returned.
  std::shared_ptr<const Model> fit_memory();
  void publish();
  void change_plan(ShardingOptions after);
  void swap_average() {
    executor().swap_average();
    executor().publish_parameters();
  }

  std::shared_ptr<const Model> described_;
  EngineOptions options_;
  Communicator& world_;
  const bool saves_meanwhile_;
  Device* device_ = nullptr;  // once allocate() has been called
  bool is_lost_ = false;
  std::uint64_t plans_ = 0;
  std::optional<ShardedModel> model_;
  Progress progress_;
  UpdatePolicy policy_;
  Saver saver_;
};

template <class Work>
void Engine::with(Weights weights, Work&& work) {
  if (weights == Weights::trained) return work();
  swap_average();
  try {
    work();
  } catch (const CollectiveError&) {  // all ranks throw it, and training may continue
    swap_average();
    throw;
  } catch (...) {  // ends a job of several ranks, but is thrown to the program of one
    if (world_.size() == 1) swap_average();
    throw;
  }
  swap_average();
}

}  // namespace fsdp
