// Layers and losses of the library, and one of a user's: backward is the derivative of forward; and a wrong one is found.
#define BOOST_TEST_MODULE api.gradients
#include <boost/test/unit_test.hpp>

#include <functional>

#include <fsdp/fsdp.hpp>

#include "gated_convolution.hpp"

using namespace fsdp;

namespace {

void require_right(const char* name, const GradientCheck& check) {
  BOOST_TEST(check.passed, name << ": " << check.where);
  BOOST_TEST(check.worst > 0, name << ": differences were computed");  // in fp32 they are never the same
}

/// GatedConvolution, whose backward pass somebody has changed.
class Changed final : public Layer {
 public:
  explicit Changed(std::function<void(const BackwardPass&)> after) : after_(std::move(after)) {}
  std::vector<LayerParameter> parameters() const override { return layer_.parameters(); }
  std::size_t inputs() const override { return layer_.inputs(); }
  std::size_t outputs() const override { return layer_.outputs(); }
  std::size_t saved() const override { return layer_.saved(); }
  std::size_t scratch() const override { return layer_.scratch(); }
  void forward(const ForwardPass& pass) const override { layer_.forward(pass); }
  void backward(const BackwardPass& pass) const override {
    layer_.backward(pass);
    after_(pass);
  }

 private:
  GatedConvolution layer_{6, 3};
  std::function<void(const BackwardPass&)> after_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(of_all_layers) {
  require_right("linear", check_gradients(*linear(7, 5)));
  require_right("linear without bias", check_gradients(*linear(3, 11, false)));
  require_right("gelu", check_gradients(*gelu(9)));
  require_right("layer_norm", check_gradients(*layer_norm(13)));
  require_right("rms_norm", check_gradients(*rms_norm(13)));
  require_right("embedding", check_gradients(*embedding(5, 7)));
  require_right("a layer of a user's", check_gradients(GatedConvolution(10, 4)));
  require_right("a layer that is longer than its sequences", check_gradients(GatedConvolution(3, 9), {.B = 3, .T = 2}));
  // An input may lie where relu has no derivative, with another seed.
  require_right("relu", check_gradients(*relu(4), {.B = 1, .T = 3, .step = 1e-3}));
}

BOOST_AUTO_TEST_CASE(of_all_losses) {
  require_right("cross_entropy", check_gradients(*cross_entropy(7)));
  require_right("mean_squared_error", check_gradients(*mean_squared_error(5)));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_found_and_named) {
  const auto check_with = [](const std::function<void(const BackwardPass&)>& change) {
    return check_gradients(Changed(change));
  };
  BOOST_TEST(check_with([](const BackwardPass&) {}).passed);
  const GradientCheck dx = check_with([](const BackwardPass& pass) { pass.dx.row(1)[2] += 1; });
  BOOST_TEST(!dx.passed);
  BOOST_TEST(dx.where.starts_with("x[1, 2]: backward says "), dx.where);
  const GradientCheck filter = check_with([](const BackwardPass& pass) { pass.gradient(1).row(2)[4] += 1; });
  BOOST_TEST(!filter.passed);
  BOOST_TEST(filter.where.starts_with("layer.filter[2, 4]: "), filter.where);
  const GradientCheck overwritten = check_with([](const BackwardPass& pass) {
    static float once = 0;  // what the first of two passes has made
    float& gradient = pass.gradient(1).row(0)[0];
    if (once == 0) once = gradient;
    gradient = once;
  });
  BOOST_TEST(!overwritten.passed);
  BOOST_TEST(overwritten.where.find("it is to add") != std::string::npos, overwritten.where);
  const GradientCheck nan = check_with([](const BackwardPass& pass) { pass.gradient(0).row(0)[0] = std::nanf(""); });
  BOOST_TEST(!nan.passed);
  BOOST_TEST(nan.where.starts_with("layer.gate[0, 0]: backward says nan"), nan.where);
}
