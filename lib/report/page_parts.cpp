#include "report/page_parts.hpp"

#include <algorithm>
#include <utility>

#include "base/format.hpp"
#include "report/page_style.hpp"
#include "report/svg.hpp"

namespace fsdp {

std::string html_page(const std::string& title, const std::string& body) {
  return format("{}{}</title>\n<style>{}</style></head>\n<body>\n{}<script>{}</script>\n</body></html>\n", page_beginning,
                escaped(title), page_style, body, page_script);
}

std::string html_section(const std::string& id, const std::string& title, const std::string& content) {
  if (content.empty()) return {};
  return format("<section id=\"{}\"><h2>{}</h2>\n{}</section>\n", id, escaped(title), content);
}

std::string percent(double share) { return format("{:.1f} %", 100 * share); }
std::string ms_text(double ms) { return ms < 1000 ? format("{:.3g} ms", ms) : format_duration(1e-3 * ms); }

std::string table(const std::vector<Cells>& rows) {
  std::string out = "<div class=\"wide\"><table>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    out += r == 0 ? "<thead><tr>" : "<tr>";
    for (const std::string& cell : rows[r])
      out += r == 0 ? format("<th>{}</th>", escaped(cell)) : format("<td>{}</td>", escaped(cell));
    out += r == 0 ? "</tr></thead>\n" : "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string plot_element(const Plot& plot) {
  const auto drawn = draw(plot, 400, 250);
  if (!drawn) return {};
  return format("<figure>{}</figure>\n", drawn->svg.element(drawn->height, plot.title, drawn->attributes));
}

std::string plots_of(const std::string& elements) {
  return elements.empty() ? "" : "<div class=\"plots\">" + elements + "</div>\n";
}

Plot throughput_plot(std::string title, std::string unit, std::vector<Curve> curves) {
  Curve ideal{.name = "ideal", .x = curves.front().x, .y = {}, .colour = curve_colour(2), .look = Curve::Look::faint};
  for (const double x : ideal.x) ideal.y.push_back(curves.front().y[0] * x / ideal.x[0]);
  curves.push_back(std::move(ideal));
  return {.title = std::move(title),
          .x_name = std::move(unit),
          .y_name = "tokens/s",
          .curves = std::move(curves),
          .from_zero = true};
}

std::string draw_bars(const std::vector<Bar>& bars, const std::function<std::string(double)>& text) {
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.total());
  std::string out;
  for (const Bar& bar : bars) {
    if (!(bar.total() > 0)) continue;
    out += format("<div class=\"bar\"><p>{}</p><div class=\"parts\" style=\"width:{:.3f}%\" role=\"img\" aria-label=\"{}\">",
                  escaped(bar.title), 100 * bar.total() / largest, escaped(bar.title));
    std::string legend;
    for (const Bar::Part& part : bar.parts) {
      const double share = part.value / bar.total();
      if (!(share >= 5e-4 && share <= 1)) continue;
      out += format("<span style=\"width:{:.3f}%;background:{}\" title=\"{}: {}\"></span>", 100 * share,
                    curve_colour(part.colour), escaped(part.name), escaped(text(part.value)));
      legend += format("<li><i style=\"background:{}\"></i>{} {} ({})</li>", curve_colour(part.colour), escaped(part.name),
                       escaped(text(part.value)), percent(share));
    }
    out += format("</div><ul class=\"legend\">{}</ul></div>\n", legend);
  }
  return out;
}

std::string html_of(const std::vector<ShownText>& shown) {
  std::string out = "<pre class=\"shown\">";
  bool line_begins = true;
  for (const ShownText& run : shown) {
    if (run.begins_document) out += format("{}<i>document</i> ", line_begins ? "" : "\n");
    const char* const element = run.is_target ? "mark" : "span";
    std::string text = escaped(run.text);
    for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 4) text.insert(at, "\u21b5");  // 3 bytes
    out += format("<{}>{}</{}>", element, text, element);
    if (!text.empty()) line_begins = text.back() == '\n';
  }
  return out + "</pre>\n";
}

}  // namespace fsdp
