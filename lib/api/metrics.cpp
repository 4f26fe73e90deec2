#include "api/metrics.hpp"

#include <limits>

#include <nlohmann/json.hpp>

#include "api/model_inside.hpp"
#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "record/metrics.hpp"
#include "record/trace.hpp"

namespace fsdp {

struct MetricsLog::Parts {
  /// May throw on one rank and not on others.
  Parts(FullyShardedDataParallel& of_model, TrainOptions with)
      : model(of_model),
        options(std::move(with)),
        leads(model.inside().job.world->rank() == 0),
        log(std::make_shared<Metrics>(options.log_file, options.log_interval, leads, stderr, options.log_format)) {
    if (!options.trace.file.empty()) {
      recorder = std::make_unique<Recorder>(model.inside().engine.model().plan(), options.trace.updates);
      if (leads) trace_file = std::make_unique<TraceFile>(options.trace.file);
    }
  }

  void start(const std::string& save_dir) {
    const FullyShardedDataParallel::Inside inside = model.inside();
    nlohmann::json all = to_json(options);
    all["save-dir"] = save_dir;
    std::size_t parameters = 0;
    for (const Parameter& parameter : inside.engine.model().model().parameters()) parameters += numel(parameter.shape);
    log->start({.version = version_string(),
                .world_size = inside.job.world->size(),
                .strategy = std::string(inside.engine.model().placement().name),
                .options = &all,
                .parameters = parameters,
                .plan_peak_bytes = inside.engine.model().plan().peak_bytes,
                .step = inside.engine.progress().update,
                .max_step = options.max_update,
                .shard_ranks = inside.engine.model().layout().shards(),
                .traffic = {}});
  }

  /// After freeze() or unfreeze(), updates have other operations than those that were recorded.
  void drop_trace_of_other_plan() {
    if (!recorder || model.inside().engine.plans() == plans) return;
    log->warn(
        format("{} is not written (freeze() or unfreeze() changed the operations of the updates); make a new MetricsLog after "
               "them",
               options.trace.file.string()));
    drop_recorder(), trace_file.reset();
  }

  void drop_recorder() {
    if (recorder) model.inside().engine.executor().forget(*recorder);
    recorder.reset();
  }

  void before_step() {
    model.inside().engine.executor().reset_times();
    if (recorder) recorder->record_next();
  }

  /// Collective.
  void write_trace() {
    const std::string problem =
        fsdp::write_trace(*recorder, model.inside().engine.model(), *model.inside().job.world, trace_file.get());
    if (!problem.empty())
      log->warn(problem);
    else
      log->say(format("trace of {}: {}; open it at https://ui.perfetto.dev", plural(recorder->updates().size(), "update"),
                      options.trace.file.string()));
    drop_recorder();
  }

  FullyShardedDataParallel& model;
  const TrainOptions options;
  const bool leads;
  const std::shared_ptr<Metrics> log;
  std::unique_ptr<TraceFile> trace_file;  // on rank 0, with options.trace
  std::unique_ptr<Recorder> recorder;     // until the trace is written
  const std::uint64_t plans = model.inside().engine.plans();
};

MetricsLog::MetricsLog(FullyShardedDataParallel& model, const MetricsOptions& o) {
  const FullyShardedDataParallel::Inside inside = model.inside();
  inside.job.together([&] {
    const auto if_given = [](const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); };
    const std::vector<Field> fields = {
        {"log-file", "log_file", if_given(o.log_file)},
        {"log-interval", "log_interval", format("{}", o.log_interval)},
        {"log-format", "log_format", o.log_format},
        {"max-update", "max_update", o.max_update > 0 ? std::optional(format("{}", o.max_update)) : std::nullopt},
        {"trace", "trace", if_given(o.trace)},
        {"trace-updates", "trace_updates",
         o.trace.empty() && o.trace_updates == MetricsOptions().trace_updates ? std::nullopt
                                                                              : std::optional(format("{}", o.trace_updates))}};
    require_same_lines(*inside.job.world, text_of(fields), "have different MetricsOptions", "they write one log and one trace");
    agree(*inside.job.world, [&] {
      TrainOptions with = inside.options;
      OptionTable table = train_option_table(with, 1);
      set_fields(table, fields);
      parts_ = std::make_unique<Parts>(model, std::move(with));
      parts_->start(o.save_dir);
    });
    require_same(*inside.job.world, format("{} {}", o.trace, o.trace_updates), [&](const std::string&) {
      throw UserError("trace or trace_updates are different on the ranks (all ranks write one trace); give all ranks the same");
    });
    inside.engine.saver().set_listener({.may_complete = [log = parts_->log] { log->sync(); },
                                        .saved = [log = parts_->log](const SaveMetrics& saved) { log->save(saved); },
                                        .warn = [](const std::string& text) { print_warnings({text}); }});
    if (parts_->recorder) inside.engine.executor().observe(*parts_->recorder);
    parts_->before_step();
  });
}
MetricsLog::~MetricsLog() { parts_->drop_recorder(); }

void MetricsLog::train(const StepResult& result, double learning_rate,
                       const std::vector<std::pair<std::string, double>>& numbers) {
  const FullyShardedDataParallel::Inside inside = parts_->model.inside();
  inside.job.together([&] {
    Parts& p = *parts_;
    Executor& executor = inside.engine.executor();
    const auto& scaler = inside.engine.progress().loss_scaler;
    const double ms = inside.last_step_s * 1e3;
    p.drop_trace_of_other_plan();
    const auto positions = static_cast<double>(inside.job.world->sum(narrow<std::int64_t>(inside.last_positions)));
    if (result.skipped)
      p.log->skip({.step = inside.engine.progress().update + 1, .ms = ms});
    else
      p.log->train({.step = inside.engine.progress().update,
                    .loss = result.loss,
                    .learning_rate = learning_rate,
                    .gradient_norm = result.gradient_norm,
                    .largest_loss = std::numeric_limits<double>::quiet_NaN(),  // unknown
                    .tokens = inside.engine.progress().tokens,
                    .tokens_per_second = inside.last_tokens / inside.last_step_s,
                    .ms = ms,
                    .mfu = {},
                    .loss_scale = scaler ? std::optional(scaler->scale) : std::nullopt,
                    .times = executor.knows_times() ? std::optional(executor.times()) : std::nullopt,
                    .mem_peak_bytes = executor.peak_bytes(),
                    .positions_per_second = positions / inside.last_step_s,
                    .numbers = numbers});
    p.drop_trace_of_other_plan();
    if (p.recorder && p.recorder->full()) p.write_trace();
    p.before_step();
  });
}

void MetricsLog::say(const std::string& text) { parts_->log->say(text); }

void MetricsLog::end(const std::string& reason) {
  const FullyShardedDataParallel::Inside inside = parts_->model.inside();
  inside.job.together([&] {
    Parts& p = *parts_;
    p.drop_trace_of_other_plan();
    if (p.recorder) p.write_trace();
    if (!reason.empty()) p.log->stop(inside.engine.progress().update, reason);
    p.log->end({.step = inside.engine.progress().update,
                .tokens = inside.engine.progress().tokens,
                .mem_peak_bytes = inside.engine.executor().peak_bytes(),
                .next = {}});
  });
}

}  // namespace fsdp
