// The options of fsdp-train: all rules between them, and the messages.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <sstream>

#include <nlohmann/json.hpp>

#include "options/changed_options.hpp"
#include "options/options.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

TrainCommand parse(std::vector<const char*> arguments, int world_size = 1) {
  arguments.insert(arguments.begin(), "fsdp-train");
  return parse_train_command(static_cast<int>(arguments.size()), arguments.data(), world_size);
}

/// Parses the arguments together with the options that every run needs.
TrainOptions options(std::vector<const char*> arguments, int world_size = 1) {
  arguments.insert(arguments.end(), {"--data", "train.bin", "--arch", "gpt2", "--max-update", "100"});
  return parse(std::move(arguments), world_size).options;
}

std::string error(std::vector<const char*> arguments, int world_size = 1) {
  return message_of([&] { options(std::move(arguments), world_size); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(defaults_are_pytorchs) {
  const auto o = options({});
  BOOST_TEST(o.schedule.learning_rate == 1e-3);
  BOOST_TEST(o.sharding.optimizer.beta1 == 0.9);
  BOOST_TEST(o.sharding.optimizer.beta2 == 0.999);
  BOOST_TEST(o.sharding.optimizer.eps == 1e-8);
  BOOST_TEST(o.sharding.optimizer.weight_decay == 0.01);
  BOOST_TEST(o.clip_norm == 0.0);
  BOOST_TEST(o.schedule.total == 100u);
  BOOST_TEST(o.sharding.plan.micro_batches == 1u);
  BOOST_TEST(o.total_batch_size == 1u);
  BOOST_CHECK(o.init == InitFrom::random);
  BOOST_CHECK(o.schedule.decay == Decay::fixed);
}

BOOST_AUTO_TEST_CASE(names_from_elsewhere) {
  const auto o = options({"--block-size", "64", "--batch_size_per_device=2", "--gradient-accumulation-steps", "3",
                          "--gradient-checkpointing", "--sharding-strategy", "NO_SHARD", "--lr-scheduler", "polynomial_decay",
                          "--adam-betas", "(0.9,0.98)"});
  BOOST_TEST(o.sharding.batch.T == 64u);
  BOOST_TEST(o.sharding.batch.B == 2u);
  BOOST_TEST(o.sharding.plan.micro_batches == 3u);
  BOOST_TEST(o.sharding.plan.checkpoint_activations);
  BOOST_TEST(o.sharding.strategy == "none");
  BOOST_CHECK(o.schedule.decay == Decay::polynomial);
  BOOST_TEST(o.sharding.optimizer.beta2 == 0.98);
  BOOST_TEST(options({"--sharding-strategy=FULL_SHARD"}).sharding.strategy == "full");
}

BOOST_AUTO_TEST_CASE(the_total_batch_size_decides_or_agrees) {
  const auto derived = options({"--batch-size", "2", "--total-batch-size", "24"}, 3);
  BOOST_TEST(derived.sharding.plan.micro_batches == 4u);
  BOOST_TEST(options({"--batch-size", "2", "--update-freq", "5"}, 3).total_batch_size == 30u);
  BOOST_TEST(options({"--batch-size", "2", "--update-freq", "4", "--total-batch-size", "24"}, 3).sharding.plan.micro_batches ==
             4u);
  CHECK_CONTAINS(error({"--batch-size", "2", "--update-freq", "4", "--total-batch-size", "20"}, 3),
                 "--total-batch-size 20 is not --batch-size 2 x --update-freq 4 x 3 ranks = 24");
  CHECK_CONTAINS(error({"--batch-size", "2000000"}), "--batch-size 2000000 with --tokens-per-sample 1024 is too large");
  CHECK_CONTAINS(error({"--batch-size", "2", "--total-batch-size", "20"}, 3),
                 "20 is not a multiple of --batch-size 2 x 3 ranks = 6");
}

BOOST_AUTO_TEST_CASE(the_model_is_chosen_once) {
  CHECK_CONTAINS(error({"--model", "somewhere"}), "--arch and --model are both given");
  CHECK_CONTAINS(error({"--init", "pretrained"}), "--init pretrained needs --model");
  CHECK_CONTAINS(message_of([] { parse({"d.bin", "--arch", "gtp2", "--max-update", "1"}); }), "gpt2");
  BOOST_CHECK(parse({"d.bin", "--model", "dir", "--max-update", "1"}).options.init == InitFrom::pretrained);
  // Without --arch and --model the model comes from the resumed checkpoint.
  BOOST_TEST(parse({"d.bin", "--max-update", "1"}).options.arch.empty());
  CHECK_CONTAINS(message_of([] { parse({"d.bin", "--max-update", "1", "--restore", "none"}); }), "no model");
}

BOOST_AUTO_TEST_CASE(overrides_apply_where_nothing_is_fixed) {
  CHECK_CONTAINS(message_of([] {
                   parse({"d.bin", "--model", "dir", "--vocab-size", "7", "--max-update", "1"});
                 }),
                 "--vocab-size does not go with pretrained weights");
  CHECK_CONTAINS(message_of([] {
                   parse({"d.bin", "--decoder-layers", "7", "--max-update", "1"});
                 }),
                 "--decoder-layers changes nothing");
  BOOST_CHECK_NO_THROW(parse({"d.bin", "--model", "dir", "--vocab-size", "7", "--init", "random", "--max-update", "1"}));
  CHECK_CONTAINS(error({"--decoder-layers", "0"}), "--decoder-layers '0' is not accepted");
}

BOOST_AUTO_TEST_CASE(overrides_carry_what_follows_from_them) {
  auto o =
      options({"--decoder-embed-dim", "96", "--decoder-attention-heads", "6", "--decoder-layers", "3", "--vocab-size", "211"});
  const auto gpt = override_config(arch_config("gpt2"), o.sizes);
  BOOST_TEST(gpt.width == 96u);
  BOOST_TEST(gpt.ffn_width == 384u);
  BOOST_TEST(gpt.heads == 6u);
  BOOST_TEST(gpt.kv_heads == 6u);
  BOOST_TEST(gpt.head_size == 16u);
  BOOST_TEST(gpt.layers == 3u);
  BOOST_TEST(gpt.vocab_size == 211u);
  o.sizes.ffn_width = 100;
  BOOST_TEST(override_config(arch_config("gpt2"), o.sizes).ffn_width == 100u);
  o.sizes.heads = 7;
  BOOST_CHECK_THROW(override_config(arch_config("gpt2"), o.sizes).validate(), UserError);
  // --decoder-attention-heads does not change the number of key/value heads.
  TrainOptions grouped;
  grouped.sizes.heads = 64;
  const auto llama = arch_config("llama-3.2-1b");
  BOOST_TEST_REQUIRE(llama.kv_heads != llama.heads);
  BOOST_TEST(override_config(llama, grouped.sizes).kv_heads == llama.kv_heads);
  BOOST_CHECK(override_config(llama, {}) == llama);
}

BOOST_AUTO_TEST_CASE(schedules_must_fit) {
  CHECK_CONTAINS(error({"--lr-scheduler", "cosine", "--warmup-updates", "101"}),
                 "--warmup-updates 101 is more than the 100 updates of the schedule");
  BOOST_TEST(options({"--warmup-updates", "101"}).schedule.warmup == 101u);  // a fixed rate has no end
  BOOST_TEST(options({"--total-num-update", "400"}).schedule.total == 400u);
  CHECK_CONTAINS(error({"--lr", "-1"}), "--lr '-1'");
  CHECK_CONTAINS(error({"--adam-betas", "(0.9,1)"}), "below 1");
  CHECK_CONTAINS(error({"--adam-eps", "0"}), "above 0");
}

BOOST_AUTO_TEST_CASE(each_optimizer_has_its_own_defaults_and_options) {
  const auto lion = options({"--optimizer", "lion"});
  BOOST_TEST(lion.sharding.optimizer.beta2 == 0.99);
  BOOST_TEST(lion.sharding.optimizer.weight_decay == 0);
  BOOST_TEST(options({"--optimizer", "adagrad"}).sharding.optimizer.eps == 1e-10);
  BOOST_TEST(options({"--optimizer", "adam"}).sharding.optimizer.weight_decay == 0);
  BOOST_TEST(options({"--optimizer", "cpu_adam"}).sharding.optimizer.weight_decay == 0);
  BOOST_TEST(options({"--optimizer", "sgd", "--adam-betas", "(0.5,0.6)", "--adam-eps", "1e-3"}).sharding.optimizer.momentum ==
             0);  // accepted
  const auto given = options({"--optimizer", "sgd", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.2"});
  const OptimizerOptions& optimizer = given.sharding.optimizer;
  BOOST_TEST((optimizer.nesterov && optimizer.momentum == 0.9 && optimizer.weight_decay == 0.2));
  CHECK_CONTAINS(error({"--momentum", "0.9"}),
                 "--momentum changes nothing (--optimizer adamw does not read it; sgd and muon do)");
  CHECK_CONTAINS(error({"--nesterov"}), "--nesterov changes nothing");
  CHECK_CONTAINS(error({"--optimizer", "sgd", "--nesterov"}), "there is no momentum");
  CHECK_CONTAINS(error({"--optimizer", "lion", "--amsgrad"}), "--amsgrad changes nothing (--optimizer lion");
  CHECK_CONTAINS(error({"--optimizer", "sgd", "--momentum", "1"}), "from 0 to below 1");
  CHECK_CONTAINS(error({"--weight-decay", "-0.1"}), "0 or more");
  CHECK_CONTAINS(error({"--adam-betas", "(-0.1,0.9)"}), "from 0 to below 1");
  CHECK_CONTAINS(error({"--optimizer-state-dtype", "fp16"}), "fp32, bf16");
}

BOOST_AUTO_TEST_CASE(rates_of_groups) {
  const OptimizerOptions optimizer = options({"--lr-scale", "h.0.*=0.1,*wte*=10", "--no-decay", "*wpe*"}).sharding.optimizer;
  BOOST_TEST(optimizer.learning_rate_scales.size() == 2u);
  BOOST_TEST(optimizer.learning_rate_scales[0].first == "h.0.*");
  BOOST_TEST(optimizer.learning_rate_scales[1].second == 10);
  const auto parameters = list_parameters(arch_config("gpt2")).parameters;
  const auto settings = settings_of(optimizer, parameters);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    BOOST_TEST(settings[p].learning_rate_scale == (name.starts_with("transformer.h.0.") ? 0.1
                                                   : name == "transformer.wte.weight"   ? 10
                                                                                        : 1));
    BOOST_TEST(settings[p].weight_decay == (parameters[p].shape.size() > 1 && name != "transformer.wpe.weight" ? 0.01 : 0));
  }
  for (const char* bad : {"h.0.*", "h.0.*=", "=0.1", "h.0.*=x", "h.0.*=-1", "h.0.*=0.1x", "h.0.*=nan", "h.0.*=inf"})
    CHECK_CONTAINS(error({"--lr-scale", bad}), "is not accepted");
  CHECK_CONTAINS(message_of([&] { settings_of({.no_decay = {"nothing*"}}, parameters); }),
                 "`parameters without decay` 'nothing*' matches no");
  CHECK_CONTAINS(message_of([&] {
                   settings_of({.learning_rate_scales = {{"h.99.*", 2}}}, parameters);
                 }),
                 "`scales of the learning rate` 'h.99.*' matches no");
}

BOOST_AUTO_TEST_CASE(schedules_need_what_they_need) {
  CHECK_CONTAINS(error({"--lr-scheduler", "wsd"}), "give --decay-updates");
  CHECK_CONTAINS(error({"--decay-updates", "5"}), "--decay-updates changes nothing");
  CHECK_CONTAINS(error({"--lr-scheduler", "wsd", "--decay-updates", "60", "--warmup-updates", "41"}),
                 "--warmup-updates 41 and --decay-updates 60 is more than");
  BOOST_TEST(options({"--lr-scheduler", "wsd", "--decay-updates", "60"}).schedule.decay_updates == 60u);
  BOOST_CHECK_NO_THROW(options({"--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000"}));
}

BOOST_AUTO_TEST_CASE(shares_of_a_schedule) {
  const auto o =
      options({"--lr_scheduler_type", "cosine_with_min_lr", "--lr", "0.02", "--warmup_ratio", "0.031", "--min-lr-rate=0.1"});
  BOOST_TEST(o.schedule.warmup == 4u);
  BOOST_TEST(o.schedule.end == 0.1 * 0.02);
  BOOST_CHECK((o.schedule.decay == Decay::cosine));
  BOOST_CHECK((options({"--lr-scheduler=constant_with_warmup"}).schedule.decay == Decay::fixed));
  BOOST_TEST(options({"--lr-scheduler=cosine_with_restarts", "--num-cycles=3"}).schedule.cycles == 3u);
  BOOST_TEST(options({"--warmup-ratio=0.5", "--total-num-update=7"}).schedule.warmup == 4u);
  // The values of a run can be given again together.
  BOOST_TEST(options({"--warmup-ratio=0.5", "--warmup-updates=50"}).schedule.warmup == 50u);
  CHECK_CONTAINS(
      error({"--warmup-ratio=0.5", "--warmup-updates=3"}),
      "--warmup-ratio 0.5 contradicts --warmup-updates 3 (it is a share of the planned updates, which makes 50 of 100)");
  CHECK_CONTAINS(error({"--lr-scheduler=cosine", "--min-lr-ratio=0.5", "--end-learning-rate=3"}),
                 "--min-lr-ratio 0.5 contradicts --end-learning-rate 3 (it makes 0.0005 of --lr 0.001)");
  CHECK_CONTAINS(error({"--min-lr-ratio=0.5"}), "--min-lr-ratio changes nothing");
  CHECK_CONTAINS(error({"--lr-scheduler=cosine", "--num-cycles=2"}), "--num-cycles changes nothing");
  CHECK_CONTAINS(error({"--lr-scheduler=linear", "--power=2"}), "--power changes nothing");
  CHECK_CONTAINS(error({"--warmup-ratio=1.5"}), "from 0 to 1");
}

BOOST_AUTO_TEST_CASE(names_of_trl) {
  const auto o = options(
      {"--chat", "--assistant_only_loss", "--completion-only-loss=true", "--target_modules", "q_proj,v_proj", "--lora-r=4"});
  BOOST_TEST((o.chat && o.lora.targets == std::vector<std::string>{"q_proj", "v_proj"}));
  CHECK_CONTAINS(error({"--assistant-only-loss"}), "--assistant-only-loss changes nothing (it goes with --chat)");
  CHECK_CONTAINS(error({"--chat", "--assistant-only-loss=false"}), "--assistant-only-loss=false is not supported");
  CHECK_CONTAINS(error({"--validate-interval-epochs=1"}), "--validate-interval-epochs has no data");
  CHECK_CONTAINS(error({"--keep-best=loss"}), "--validate-interval-updates or --validate-interval-epochs");
  BOOST_TEST(options({"--valid=v", "--validate-interval=2", "--keep-best=loss"}).validate_interval_epochs == 2u);
}

BOOST_AUTO_TEST_CASE(what_is_not_there_says_so) {
  CHECK_CONTAINS(error({"--device", "gpu"}), "auto, cpu");
  CHECK_CONTAINS(error({"--log-group-norms", "--log-file", "m.jsonl", "--clip-value", "1"}), "does not go with --clip-value");
  CHECK_CONTAINS(error({"--sharding-strategy", "half"}), "full, grad-op, optim, none, hybrid");
  CHECK_CONTAINS(error({"--optimizer", "adamww"}), "did you mean adamw?");
  CHECK_CONTAINS(message_of([] { parse({"--arch", "gpt2", "--max-update", "1"}); }), "no data");
  CHECK_CONTAINS(message_of([] { parse({"d.bin", "--arch", "gpt2"}); }), "give --max-update");
  // The end of a schedule is also the end of the run, as in fairseq's example.
  BOOST_TEST(parse({"d.bin", "--arch", "gpt2", "--total-num-update", "9", "--lr-scheduler", "cosine"}).options.max_update ==
             9u);
  BOOST_TEST(parse({"d.bin", "--arch", "gpt2", "--total-num-update", "9", "--lr-scheduler", "cosine", "--max-update", "4"})
                 .options.max_update == 4u);
  CHECK_CONTAINS(error({"--validate-interval-updates", "5"}), "give --valid");
  CHECK_CONTAINS(error({"--eval-on-start"}), "give --valid");
  BOOST_CHECK_NO_THROW(parse({"--dry-run", "--arch", "gpt2"}));
  CHECK_CONTAINS(error({"--batchsize", "5"}), "did you mean --batch-size?");
}

BOOST_AUTO_TEST_CASE(answers_instead_of_a_run) {
  CHECK_CONTAINS(*parse({"--help"}).answer, "Usage: fsdp-train");
  CHECK_CONTAINS(*parse({"--version"}).answer, "MPI");
  CHECK_CONTAINS(*parse({"--version"}).answer, "CUDA");
  CHECK_CONTAINS(*parse({"--list-archs"}).answer, "gpt2-xl ");
  BOOST_TEST(!parse({"d.bin", "--arch", "gpt2", "--max-update", "1"}).answer.has_value());
  for (const char* topic : {"--help=", "--help=all", "--help=checkpoints"}) {
    const std::string page = *parse({topic}).answer;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) BOOST_TEST(line.size() <= 100u, line);
    CHECK_CONTAINS(page, "\n  --save-dir DIR ");
    BOOST_TEST(contains(page, "\n  --keep-every N ") == (topic != std::string("--help=")));
    if (topic == std::string("--help=")) BOOST_TEST(std::count(page.begin(), page.end(), '\n') <= 60);
  }
}

BOOST_AUTO_TEST_CASE(the_printed_configuration_is_a_run_of_its_own) {
  const TemporaryFolder folder;
  const std::string file = (folder / "run.ini").string();
  const std::vector<const char*> arguments = {"d.bin",  "--arch",       "gpt2", "--total-batch-size", "24", "--lr",
                                              "0.0003", "--max-update", "7",    "--print-config"};
  const std::string printed = *parse(arguments, 4).answer;
  CHECK_CONTAINS(printed, "\ntotal-batch-size = 24\n");
  CHECK_CONTAINS(printed, "\n# update-freq = 6 (follows from other options)\n");
  CHECK_CONTAINS(printed, "\n# total-num-update = 7 (follows from other options)\n");
  CHECK_CONTAINS(printed, "\n# valid = (the split for validation, if DATA is a folder that has it; else no validation)\n");
  write_file(file, "\xef\xbb\xbf" + printed);  // a byte-order mark, as some editors write
  const auto again = parse({"--config", file.c_str()}, 4).options;
  BOOST_CHECK(to_json(again) == to_json(parse({arguments.begin(), arguments.end() - 1}, 4).options));
  BOOST_TEST(*parse({"--config", file.c_str(), "--print-config"}, 4).answer == printed);
  // Options that were not given may be set by other spellings, and adapt to another number of ranks.
  const auto other = parse({"--config", file.c_str(), "--bf16", "--ddp-backend", "pytorch_ddp"}, 4).options;
  BOOST_CHECK(other.sharding.types.parameter == DType::bf16);
  BOOST_TEST(other.sharding.strategy == "none");
  BOOST_TEST(parse({"--config", file.c_str()}, 2).options.sharding.plan.micro_batches == 12u);
}

BOOST_AUTO_TEST_CASE(the_echo_holds_numbers_as_numbers) {
  const auto json = to_json(options({"--lr", "3e-4", "--checkpoint-activations"}));
  BOOST_TEST(json.at("lr").get<double>() == 3e-4);
  BOOST_TEST(json.at("max-update").get<int>() == 100);
  BOOST_TEST(json.at("checkpoint-activations").get<bool>());
  BOOST_TEST(json.at("arch").get<std::string>() == "gpt2");
  BOOST_TEST(json.at("valid").is_null());
  BOOST_TEST(!json.contains("list-archs"));
}

/// The list of all options that a resumed run does not compare. A new option must be compared or added to this list.
BOOST_AUTO_TEST_CASE(options_that_change_results_are_compared_when_a_run_resumes) {
  const auto now = options({"--lr-scheduler", "cosine", "--fp16", "--reset-optimizer"});
  const auto told = to_json(now);
  BOOST_TEST(describe_changed_options(told, now, 6) == "");
  const std::string compared[] = {"adam-betas",
                                  "adam-eps",
                                  "amsgrad",
                                  "attention-dropout",
                                  "bias-gelu-fusion",
                                  "break-mode",
                                  "buffer-dtype",
                                  "clip-norm",
                                  "clip-value",
                                  "criterion",
                                  "data",
                                  "decay-updates",
                                  "document-attention",
                                  "dropout",
                                  "ema-decay",
                                  "ema-start-update",
                                  "end-learning-rate",
                                  "eos-token-id",
                                  "fp16-init-scale",
                                  "fp16-scale-tolerance",
                                  "fp16-scale-window",
                                  "freeze",
                                  "grad-dtype",
                                  "label-smoothing",
                                  "lora-dropout",
                                  "lr",
                                  "lr-scale",
                                  "lr-scheduler",
                                  "mask",
                                  "master-dtype",
                                  "memory-limit",
                                  "group-by-length",
                                  "long-rows",
                                  "min-loss-scale",
                                  "min-lr-ratio",
                                  "momentum",
                                  "neftune-alpha",
                                  "nesterov",
                                  "no-decay",
                                  "num-cycles",
                                  "optimizer",
                                  "optimizer-state-dtype",
                                  "packing",
                                  "pad-to-multiple-of",
                                  "power",
                                  "precision",
                                  "reduce-dtype",
                                  "seed",
                                  "shuffle",
                                  "skip-spikes",
                                  "task",
                                  "threshold-loss-scale",
                                  "tokens-per-sample",
                                  "total-batch-size",
                                  "total-num-update",
                                  "train-only",
                                  "warmup-ratio",
                                  "warmup-updates",
                                  "weight-decay",
                                  "z-loss"};
  std::size_t rows = 0;
  for (const auto& [name, value] : told.items()) {
    auto before = told;
    before[name] = "another";
    const std::string warning = describe_changed_options(before, now, 6);
    const bool is_compared = std::find(std::begin(compared), std::end(compared), name) != std::end(compared);
    BOOST_TEST(warning.empty() != (is_compared), name);
    if (is_compared) CHECK_CONTAINS(warning, "--" + name);
    rows += is_compared;
  }
  BOOST_TEST(rows == std::size(compared));
  for (const std::string_view name : options_that_keep_results()) BOOST_TEST(told.contains(std::string(name)), name);
}

BOOST_AUTO_TEST_CASE(what_follows_from_changed_options_is_said) {
  const auto changed = [](std::vector<const char*> before, std::vector<const char*> now, std::uint64_t update = 6) {
    for (auto* words : {&before, &now}) words->insert(words->end(), {"--data", "d", "--arch", "gpt2"});
    return describe_changed_options(to_json(parse(before).options), parse(now).options, update);
  };
  BOOST_TEST(changed({"--lr-scheduler", "cosine", "--max-update", "6"}, {"--lr-scheduler", "cosine", "--max-update", "12"}) ==
             "the run resumes after update 6 with changed options: --total-num-update (by --max-update) is 12 now and "
             "was 6 (the rate was 0 at update 6 and is 3.71e-04 at update 7)");
  for (const char* const fixed : {"fixed", "inverse_sqrt"})
    BOOST_TEST(changed({"--lr-scheduler", fixed, "--max-update", "6"}, {"--lr-scheduler", fixed, "--max-update", "12"}) == "");
  BOOST_TEST(changed({"--lr-scheduler", "cosine", "--total-num-update", "9", "--max-update", "6"},
                     {"--lr-scheduler", "cosine", "--total-num-update", "9", "--max-update", "8"}) == "");
  CHECK_CONTAINS(changed({"--lr-scheduler", "cosine", "--max-epoch", "1"}, {"--lr-scheduler", "cosine", "--max-epoch", "2"}),
                 "--max-epoch (at its end the decay ends) is 2 now and was 1");
  const auto moved = [](std::vector<const char*> before, std::vector<const char*> now, std::uint64_t end,
                        std::uint64_t end_now) {
    for (auto* words : {&before, &now}) words->insert(words->end(), {"--data", "d", "--arch", "gpt2"});
    const TrainOptions options = parse(now).options;
    Schedule schedule = options.schedule;
    if (schedule.total == 0) schedule.total = end_now;
    return describe_moved_end(to_json(parse(before).options), end, options, schedule, 16);
  };
  // A warm-up by share follows the end.
  const std::vector<const char*> by_share = {"--lr-scheduler", "linear", "--lr",           "1e-2",
                                             "--max-epoch",    "2",      "--warmup-ratio", "0.5"};
  CHECK_CONTAINS(moved(by_share, by_share, 20, 56), "(the rate was 4.00e-03 at update 16 and is ");
  const std::vector<const char*> passes = {"--lr-scheduler", "cosine", "--lr", "1e-2", "--max-epoch", "2"};
  BOOST_TEST(moved(passes, passes, 20, 56) ==
             "the decay of the learning rate ends at update 56 now; as planned before, it ends at update 20 (the rate was "
             "9.55e-04 at update 16 and is 7.89e-03 at update 17); to keep it, give --total-num-update");
  BOOST_TEST(moved(passes, passes, 20, 20) == "");
  BOOST_TEST(moved(passes, passes, 0, 56) == "");  // an older checkpoint
  CHECK_CONTAINS(moved(passes, {"--lr-scheduler", "cosine", "--lr", "1e-2", "--max-update", "30"}, 20, 0), "update 30 now");
  CHECK_CONTAINS(moved({"--max-update", "30"}, passes, 0, 56), "it has no end");
  const std::vector<const char*> fixed = {"--lr", "1e-2", "--max-epoch", "2"};
  BOOST_TEST(moved(fixed, fixed, 0, 56) == "");
  const std::vector<const char*> scale = {"--max-update", "9", "--fp16", "--fp16-init-scale", "64"};
  BOOST_TEST(changed({"--max-update", "9", "--fp16"}, scale) == "");  // the checkpoint has the scale
  BOOST_TEST(changed({"--max-epoch", "1"}, {"--max-epoch", "2"}) == "");
  const std::string two = changed({"--max-update", "9", "--seed", "1", "--batch-size", "4"},
                                  {"--max-update", "9", "--seed", "2", "--batch-size", "2", "--weight-decay", "0.5"});
  for (const char* const part : {"--seed is 2 now and was 1", "--total-batch-size is 2 now and was 4", "--weight-decay is 0.5",
                                 "; to keep the sequences of an update"})
    CHECK_CONTAINS(two, part);
  BOOST_TEST(two.find("rate was") == std::string::npos);
  // Another division of the same batch is equal to rounding.
  BOOST_TEST(changed({"--max-update", "9", "--batch-size", "4"},
                     {"--max-update", "9", "--batch-size", "2", "--update-freq", "2"}) == "");
}

BOOST_AUTO_TEST_CASE(one_strategy_has_several_spellings) {
  const auto strategy = [](std::vector<const char*> arguments) { return options(std::move(arguments)).sharding.strategy; };
  BOOST_TEST(strategy({}) == "full");
  BOOST_TEST(strategy({"--sharding-strategy", "SHARD_GRAD_OP"}) == "grad-op");
  BOOST_TEST(strategy({"--sharding-strategy", "_HYBRID_SHARD_ZERO2"}) == "hybrid-grad-op");
  BOOST_TEST(strategy({"--ddp-backend", "fully_sharded"}) == "full");
  BOOST_TEST(strategy({"--ddp-backend", "pytorch_ddp"}) == "none");
  BOOST_TEST(strategy({"--ddp-backend", "fully_sharded", "--no-reshard-after-forward"}) == "grad-op");
  BOOST_TEST(strategy({"--sharding-strategy", "hybrid", "--no-reshard-after-forward"}) == "hybrid-grad-op");
  CHECK_CONTAINS(error({"--ddp-backend", "pytorch_ddp", "--sharding-strategy", "full"}), "contradicts");
  CHECK_CONTAINS(error({"--no-reshard-after-forward", "--sharding-strategy", "none"}), "does not go with");
  for (const char* type : {"bfloat16", "torch.bfloat16", "bf16"})
    BOOST_TEST((options({"--precision", type}).sharding.types.parameter == DType::bf16));
  BOOST_TEST((options({"--backward-prefetch", "BACKWARD_POST"}).sharding.plan.backward_prefetch == BackwardPrefetch::post));
  BOOST_TEST((options({"--wrap-policy", "transformer_auto_wrap_policy"}).sharding.wrap.kind == WrapPolicy::Kind::transformer));
  BOOST_TEST(options({"--warmup-updates", "1_0"}).schedule.warmup == 10u);
  for (const char* backend : {"c10d", "legacy_ddp", "no_c10d"}) BOOST_TEST(strategy({"--ddp-backend", backend}) == "none");
  CHECK_CONTAINS(error({"--ddp-backend", "deepspeed"}), "give one of fully_sharded, pytorch_ddp, c10d, legacy_ddp, no_c10d");
}

BOOST_AUTO_TEST_CASE(fairseqs_ways_to_say_the_batch) {
  const auto batch = [](std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--tokens-per-sample", "512"});
    return options(std::move(arguments)).sharding.batch.B;
  };
  BOOST_TEST(batch({"--max-sentences", "3"}) == 3u);
  BOOST_TEST(batch({"--max-tokens", "2048"}) == 4u);
  BOOST_TEST(batch({"--max-tokens", "2047"}) == 3u);
  BOOST_TEST(batch({"--max-tokens", "2048", "--batch-size", "2"}) == 2u);
  BOOST_TEST(batch({"--max-tokens", "2048", "--batch-size", "9"}) == 4u);
  BOOST_TEST(options({"--max-tokens", "2048", "--update-freq", "3"}, 2).total_batch_size == 12u);  // of 1,024 tokens each
  CHECK_CONTAINS(error({"--max-tokens", "1000"}), "--max-tokens 1000 does not hold one sequence of 1024 tokens");
}

BOOST_AUTO_TEST_CASE(fairseqs_ways_to_change_a_model) {
  const auto config = [](const char* arch, std::vector<const char*> arguments) {
    arguments.insert(arguments.end(), {"--data", "train.bin", "--arch", arch, "--max-update", "100"});
    return override_config(arch_config(arch), parse(std::move(arguments)).options.sizes);
  };
  const auto said = [&](const char* arch, std::vector<const char*> arguments) {
    return with_option_names(message_of([&] { config(arch, std::move(arguments)).validate(); }));
  };
  const TransformerConfig changed = config(
      "transformer_lm_gpt2_small", {"--share-decoder-input-output-embed", "--activation-fn", "relu", "--no-scale-embedding"});
  TransformerConfig expected = arch_config("transformer_lm_gpt2_small");
  expected.tied_embeddings = true, expected.activation = Activation::relu, expected.scaled_embedding = false;
  BOOST_CHECK(changed == expected);
  BOOST_CHECK_NO_THROW(changed.validate());
  // The other fairseq family has the other kind of positions.
  const TransformerConfig learned = config("transformer_lm_gpt2_small", {"--decoder-learned-pos"});
  BOOST_TEST(learned.family == "biogpt");
  BOOST_CHECK(learned.positions == Positions::learned);
  BOOST_CHECK_NO_THROW(learned.validate());
  const TransformerConfig sines = config("transformer_lm_gpt3_small", {"--decoder-learned-pos=false"});
  BOOST_TEST(sines.family == "xglm");
  BOOST_TEST(sines.tied_embeddings);
  // Options that the model already has change nothing, and other families support some of them.
  BOOST_CHECK(config("gpt2", {"--decoder-learned-pos", "--share-decoder-input-output-embed"}) == arch_config("gpt2"));
  BOOST_CHECK(config("gpt2", {"--activation-fn", "gelu"}).activation == Activation::gelu_erf);
  BOOST_CHECK(!config("gpt2", {"--share-decoder-input-output-embed=false"}).tied_embeddings);
  // Unsupported values are named.
  CHECK_CONTAINS(said("gpt2", {"--activation-fn", "relu"}),
                 "--activation-fn relu is not possible in a model of the family gpt2");
  CHECK_CONTAINS(said("llama-3.2-1b", {"--activation-fn", "gelu"}), "--activation-fn gelu is not");
  CHECK_CONTAINS(said("llama-3.2-1b", {"--decoder-learned-pos"}), "--decoder-learned-pos is not");
  CHECK_CONTAINS(said("gpt2", {"--decoder-learned-pos=false"}), "--decoder-learned-pos=false is not");
  CHECK_CONTAINS(said("gpt2", {"--no-scale-embedding=false"}), "--no-scale-embedding=false is not");
}

BOOST_AUTO_TEST_CASE(options_of_other_programs_are_known_by_name) {
  const std::pair<const char*, const char*> said[] = {
      {"--training.steps=100", "unknown option --training.steps (another program's name for it); give --max-update"},
      {"--deepspeed_config=x.json", "(its keys are options here); see docs/from-deepspeed.md for each key"},
      {"--nproc_per_node=4", "(the launcher sets the number of ranks); start that many, as in mpirun -np 8"},
      {"--fp16-no-flatten-grads",
       "unknown option --fp16-no-flatten-grads (gradients keep their names and shapes); leave it out"},
      {"--fsdp_reshard_after_forward=true", "give --sharding-strategy full (true) or grad-op (false)"},
      {"--lr-scheduler=tri_stage", "--lr-scheduler tri_stage is not supported (another program's name for it); give"},
      {"--optimizer=nag", "give --optimizer sgd --momentum M --nesterov"},
      {"--ddp-backend=slowmo", "--ddp-backend 'slowmo' is not accepted (no such choice"},
      {"--update-freq=4,2,1", "--update-freq 4,2,1 is not supported (one number holds for the whole run); give one number"},
      {"--update-freq=[4]", "--update-freq [4] is not supported (one number holds for the whole run"},
      {"--lr=0.001,0.0005", "--lr 0.001,0.0005 is not supported (one rate holds for the whole run"},
      {"--update-freq=x", "--update-freq 'x' is not accepted (not a whole number); give a whole number"},
      {"--limit-all-gathers=True",
       "--limit-all-gathers True is not supported (the number of gathered units always has a limit); leave it out"},
      {"--plasma-path=x",
       "unknown option --plasma-path; see fsdp-train --help, and docs/from-*.md for other programs' options"},
      {"--batchsize=2", "unknown option --batchsize; did you mean --batch-size?"}};
  for (const auto& [option, text] : said) CHECK_CONTAINS(error({option}), text);
  BOOST_TEST(options({"--wd", "0.25"}).sharding.optimizer.weight_decay == 0.25);
  CHECK_CONTAINS(error({"--bf16", "True"}), "--bf16 True is not understood");
}

BOOST_AUTO_TEST_CASE(saves_by_time_have_a_unit) {
  for (const char* meant_otherwise : {"1", "1000", "0.5"})
    CHECK_CONTAINS(error({"--save-interval", meant_otherwise}),
                   "it has no unit, and other programs count epochs or updates, as --save-interval-updates does); give a time");
  BOOST_TEST(options({"--save-interval", "0"}).save.interval_s == 0.0);
  BOOST_TEST(options({"--save-interval", "30min"}).save.interval_s == 1800.0);
  BOOST_TEST(options({"--collective-timeout", "600"}).comm.timeout_s == 600.0);
}

BOOST_AUTO_TEST_CASE(the_interval_of_saves_may_follow_from_failures) {
  const SaveOptions save = options({"--save-interval", "auto", "--mtbf", "24h"}).save;
  BOOST_TEST((save.interval_auto && save.meanwhile()));
  BOOST_TEST(save.mtbf_s == 86400.0);
  BOOST_TEST(!options({"--save-interval", "30min"}).save.interval_auto);
  CHECK_CONTAINS(error({"--save-interval=auto"}), "needs the mean time between failures of the job (there is no --mtbf); give");
  CHECK_CONTAINS(error({"--save-interval=auto", "--mtbf=0"}), "(--mtbf is 0); give --mtbf TIME, such as 24h");
  CHECK_CONTAINS(error({"--save-interval=auto", "--mtbf=-1h"}), "--mtbf '-1h' is not accepted (not a time)");
  CHECK_CONTAINS(error({"--save-interval=auto", "--mtbf=24"}), "it has no unit, and sites give hours or days");
  CHECK_CONTAINS(error({"--mtbf=24h"}), "--mtbf changes nothing (it goes with --save-interval auto)");
  CHECK_CONTAINS(error({"--save-interval=often"}), "a time, such as 90s, 30min or 2h, or auto");
}

BOOST_AUTO_TEST_CASE(files_of_a_checkpoint_and_their_striping_are_checked) {
  BOOST_TEST(options({"--files-per-checkpoint", "16"}).save.files == 16);
  BOOST_TEST(options({"--files-per-checkpoint", "node"}).save.files == 0);
  for (const char* bad : {"0", "-1", "x", "2.5", "99999999999"})
    CHECK_CONTAINS(error({"--files-per-checkpoint", bad}), "(expected a whole number, at least 1, or node)");
  CHECK_CONTAINS(error({"--files-per-checkpoint=2", "--compress=gzip"}), "contradicts --compress gzip");
  BOOST_TEST(options({"--stripe", "8:16M"}).stripe == "8:16M");
  CHECK_CONTAINS(error({"--stripe", "0"}), "expected COUNT or COUNT:SIZE");
}

BOOST_AUTO_TEST_CASE(quantities_of_the_library_are_named_by_their_options) {
  BOOST_TEST(with_option_names("use a smaller `micro-batch` or `recomputation of activations`, or another `save folder`") ==
             "use a smaller --batch-size or --checkpoint-activations, or another --save-dir");
  BOOST_TEST(with_option_names("`communication by messages` shares none; `this` is no quantity, nor is `") ==
             "--comm mpi shares none; `this` is no quantity, nor is `");
  const auto said = [](const auto& call) { return with_option_names(message_of(call)); };
  CHECK_CONTAINS(said([] { arch_config("gtp2"); }), "--arch gtp2 is not known (did you mean gpt2?); see --list-archs");
  const auto parameters = list_parameters(arch_config("gpt2")).parameters;
  CHECK_CONTAINS(said([&] { wrap_parameters(parameters, {}, {.freeze = {"*"}}); }), "narrow --freeze or widen --train-only");
  CHECK_CONTAINS(said([&] { settings_of({.no_decay = {"nothing*"}}, parameters); }), "--no-decay 'nothing*' matches no");
  const ShardingOptions too_long = {.batch = {.B = 1, .T = 4096}};
  CHECK_CONTAINS(said([&] { check_sharding(arch_config("gpt2"), too_long, 1); }), "lower --tokens-per-sample");
}

BOOST_AUTO_TEST_CASE(options_that_would_change_nothing) {
  CHECK_CONTAINS(error({"--shard-group-size", "2"}), "--shard-group-size changes nothing");
  CHECK_CONTAINS(error({"--wrap-policy", "none", "--wrap-layers", "2"}), "--wrap-layers changes nothing");
  CHECK_CONTAINS(error({"--min-num-params", "2M"}), "--min-num-params changes nothing");
  CHECK_CONTAINS(error({"--wrap-units", "h.*"}), "--wrap-units changes nothing");
  CHECK_CONTAINS(error({"--wrap-policy", "custom"}), "has no units");
  CHECK_CONTAINS(error({"--checkpoint-every", "2"}), "--checkpoint-every changes nothing");
  CHECK_CONTAINS(error({"--recompute-num-layers", "2", "--checkpoint-every", "2"}), "--checkpoint-every changes nothing");
  CHECK_CONTAINS(error({"--recompute-num-layers", "2", "--checkpoint-policy", "selective"}),
                 "--checkpoint-policy changes nothing");
  BOOST_TEST(options({"--wrap-policy", "size", "--min-num-params", "2M"}).sharding.wrap.min_num_params == 2000000u);
}

BOOST_AUTO_TEST_CASE(inputs_of_blocks_on_the_host) {
  const auto plan = [](std::initializer_list<const char*> words) { return options(words).sharding.plan; };
  BOOST_TEST(plan({}).offloaded_inputs == 0u);
  BOOST_TEST(plan({"--offload-activations"}).offloaded_inputs == all_inputs);
  BOOST_TEST(plan({"--offload-activations"}).checkpoint_activations);
  const PlanOptions some = plan({"--offload-activations", "--recompute-num-layers", "5", "--cpu-offloading-num-layers", "3"});
  BOOST_TEST((some.recomputed_blocks == 5u && some.offloaded_inputs == 3u && !some.checkpoint_activations));
  CHECK_CONTAINS(error({"--cpu-offloading-num-layers", "3"}), "--cpu-offloading-num-layers changes nothing");
  CHECK_CONTAINS(
      error({"--offload-activations", "--checkpoint-policy", "selective"}),
      "--offload-activations contradicts --checkpoint-policy selective (only inputs of blocks are kept on the host)");
  for (const char* theirs : {"--activation-offloading", "--activation-checkpoint-cpu-offload", "--offload-residual"})
    CHECK_CONTAINS(error({theirs}), "give --offload-activations");
}

BOOST_AUTO_TEST_CASE(a_memory_limit_chooses_if_nothing_else_does) {
  BOOST_TEST(!options({}).chooses_blocks);
  BOOST_TEST(options({"--memory-limit", "3GB"}).chooses_blocks);
  BOOST_TEST(options({"--recompute-num-layers", "auto"}).chooses_blocks);
  BOOST_TEST(!options({"--memory-limit", "3GB", "--recompute-num-layers", "2"}).chooses_blocks);
  for (const char* chosen : {"--checkpoint-activations", "--offload-activations"})
    BOOST_TEST(!options({"--memory-limit", "3GB", chosen}).chooses_blocks);
}

BOOST_AUTO_TEST_CASE(the_number_of_recomputed_blocks) {
  BOOST_TEST(options({}).sharding.plan.recomputed_blocks == 0u);
  BOOST_TEST(options({"--recompute-num-layers", "5"}).sharding.plan.recomputed_blocks == 5u);
  const TrainOptions automatic = options({"--recompute_num_layers=auto", "--memory-limit", "3GB"});
  BOOST_TEST(automatic.recompute_num_layers == "auto");
  BOOST_TEST(automatic.sharding.plan.recomputed_blocks == 0u);
  BOOST_TEST(automatic.memory_limit == 3000000000u);
  BOOST_TEST(to_json(automatic)["recompute-num-layers"] == "auto");
  BOOST_TEST(to_json(options({"--recompute-num-layers", "5"}))["recompute-num-layers"] == 5);
  for (const char* wrong : {"-1", "x", "2x", "1.5", "99999999999999999999999"})
    CHECK_CONTAINS(error({format("--recompute-num-layers={}", wrong).c_str()}),
                   format("--recompute-num-layers '{}' is neither a number of blocks nor auto", wrong));
  CHECK_CONTAINS(error({"--recompute-num-layers", "2", "--checkpoint-activations"}),
                 "--recompute-num-layers contradicts --checkpoint-activations");
  CHECK_CONTAINS(error({"--recompute-num-layers", "auto", "--gradient-checkpointing"}), "leave out one of them");
  CHECK_CONTAINS(error({"--recompute-method", "block"}), "give --recompute-num-layers N for block");
  CHECK_CONTAINS(error({"--recompute-method", "uniform"}), "--checkpoint-activations --checkpoint-every N for uniform");
}
