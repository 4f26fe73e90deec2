#include "data/position.hpp"

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

DataPosition continue_data(const DataPosition& before, const DataPosition& now, std::string* notice) {
  expect(now.tokens_per_sample > 0, "a position in data has a cut");
  const auto say = [&](const std::string& text) {
    if (notice) *notice = text;
  };
  DataPosition position = now;
  position.sequences = 0;
  if (before.tokens_per_sample == 0) {
    say("the checkpoint has no position in the data (a user's program wrote it): the data are read from the start");
    return position;
  }
  const std::uint64_t T = before.tokens_per_sample, U = now.tokens_per_sample;
  // A token file may replace the text from which it was made, so an unknown checksum (0) counts as equal to any checksum.
  const auto same = [](std::uint64_t a, std::uint64_t b) { return a == b || a == 0 || b == 0; };
  const bool same_text = same(before.text_sum, now.text_sum),
             same_sample = same(before.sample_sum, now.sample_sum) && same(before.token_sum, now.token_sum),
             same_documents = same(before.documents_sum, now.documents_sum), same_mask = same(before.mask_sum, now.mask_sum);
  const bool same_data = before.data_tokens == now.data_tokens && same_text && same_sample && same_documents && same_mask,
             same_shuffle = before.shuffled == now.shuffled, same_order = same_shuffle && before.order == now.order;
  if (same_data && same_order && T == U) {
    say("");
    position.sequences = before.sequences, position.seed = before.seed;
    position.text_sum = before.text_sum;
    return position;
  }
  const auto per_pass = [](const DataPosition& data) {  // Samples::count()
    return data.data_tokens < 2 ? 0 : (data.data_tokens - 2) / data.tokens_per_sample + 1;
  };
  const std::uint64_t per_pass_before = per_pass(before), per_pass_now = per_pass(now);
  if (same_data && same_order && !now.shuffled && now.order.empty() && per_pass_before > 0 && per_pass_now > 0) {
    const std::uint64_t pass = before.sequences / per_pass_before, in_pass = before.sequences % per_pass_before;
    position.sequences = pass * per_pass_now + in_pass * T / U;
    say(format("sequences had {} tokens and now have {}: the data continue after the same number of tokens", T, U));
    return position;
  }
  say(format("{}: the data are read from the start",
             !same_text ? std::string("the text or its tokenizer has changed")
             : before.data_tokens != now.data_tokens
                 ? format("the data have changed ({} tokens, {} before)", now.data_tokens, before.data_tokens)
             : !same_data    ? format("the data have changed (the same number of tokens, but {})",
                                   !same_sample      ? "other tokens"
                                      : !same_documents ? "other documents"
                                                        : "other tokens count in the loss")
             : !same_shuffle ? format("the data are {}shuffled now and were {}before", now.shuffled ? "" : "not ",
                                      now.shuffled ? "not " : "")
             : !same_order   ? std::string("the data are mixed or cut in another way than before")
                           : format("{} sequences had {} tokens and now have {}", now.shuffled ? "shuffled" : "mixed", T, U)));
  return position;
}

}  // namespace fsdp
