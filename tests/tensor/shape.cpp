// The integers of sharding.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "tensor/shape.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(shares_cover_everything_once) {
  for (std::size_t n : {0u, 1u, 2u, 7u, 12u, 101u})
    for (std::size_t parts : {1u, 2u, 3u, 4u, 13u}) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        BOOST_TEST(share(n, parts, i).begin == at);
        at = share(n, parts, i).end;
      }
      BOOST_TEST(at == n);
    }
}

BOOST_AUTO_TEST_CASE(intersections) {
  BOOST_CHECK((intersect({2, 9}, {4, 20}) == Range{4, 9}));
  BOOST_TEST(intersect({2, 4}, {4, 9}).empty());
  BOOST_TEST(intersect({6, 9}, {0, 2}).empty());
}

BOOST_AUTO_TEST_CASE(a_flat_range_is_its_boxes_in_order) {
  for (const Shape& shape : {Shape{11}, Shape{5, 7}, Shape{3, 4, 5}, Shape{1, 9}, Shape{9, 1}, Shape{2, 2, 2, 3}}) {
    const std::size_t n = numel(shape);
    for (std::size_t begin = 0; begin <= n; ++begin)
      for (std::size_t end = begin; end <= n; ++end) {
        std::vector<std::size_t> seen;
        const auto boxes = hyperslabs(shape, {begin, end});
        if (shape.size() == 2) BOOST_TEST(boxes.size() <= 3u);
        for (const Hyperslab& box : boxes) {
          BOOST_TEST(box.offset == seen.size());
          for (std::size_t i = 0; i < numel(box.count); ++i) {  // walk the box in row-major order
            std::size_t rest = i, flat = 0, stride = 1;
            for (std::size_t d = shape.size(); d-- > 0;) {
              flat += (box.start[d] + rest % box.count[d]) * stride;
              rest /= box.count[d];
              stride *= shape[d];
            }
            seen.push_back(flat);
          }
        }
        BOOST_TEST(seen.size() == end - begin);
        for (std::size_t i = 0; i < seen.size(); ++i) BOOST_TEST(seen[i] == begin + i);
      }
  }
  BOOST_CHECK_THROW(hyperslabs({2, 2}, {0, 5}), InternalError);
}
