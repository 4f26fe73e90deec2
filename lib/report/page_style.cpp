#include "report/page_style.hpp"

namespace fsdp {

// --c0 to --c7 are the colours of plot.cpp, and lighter ones for a dark ground.
const std::string_view page_style = R"css(
:root{color-scheme:light dark;--ground:#fff;--text:#1c1c1c;--quiet:#5c5c5c;--soft:#dcdcdc;--panel:#f6f6f4;--target:#c9eadf;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#8c564b;--c7:#6e6e6e}
@media (prefers-color-scheme:dark){:root{--ground:#16181b;--text:#e8e6e3;--quiet:#a8a6a2;--soft:#373a3f;--panel:#1f2226;--target:#12493b;
--c0:#58aee8;--c1:#ff8b4a;--c2:#35c9a0;--c3:#e8a3cb;--c4:#f7b733;--c5:#92d3f7;--c6:#c79c8f;--c7:#b3b3b3}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:1rem;background:var(--ground);color:var(--text);
font:15px/1.45 Helvetica,Arial,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.6rem 0 .5rem;border-bottom:1px solid var(--soft)}
h3,h4{margin:.8rem 0 .2rem;font-size:1rem}p{margin:.3rem 0}
header p,figcaption,footer,h4{color:var(--quiet)}footer{margin-top:2rem;font-size:.85rem;overflow-wrap:anywhere}
aside{background:var(--panel);border-left:4px solid var(--c1);padding:.5rem .8rem;margin:.8rem 0}aside ul{margin:.2rem 0;padding-left:1.2rem}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1rem 1.4rem}
figure{margin:0;position:relative}figure svg{width:100%;height:auto;display:block}figure.broad{overflow-x:auto}figure.broad svg{min-width:640px;background:#fff;color:#222;border-radius:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;vertical-align:top;white-space:nowrap}#starts td:last-child,#constants td:last-child{white-space:normal;min-width:16rem}
@media (max-width:760px){#summary td,#differences td{white-space:normal}#summary td:first-child{min-width:7rem}}
th{color:var(--quiet);font-weight:600}
.wide th:first-child,.wide td:first-child{position:sticky;left:0;background:var(--ground);max-width:48vw;white-space:normal}
tbody tr,tr{border-bottom:1px solid var(--soft)}
details td:last-child{white-space:normal;overflow-wrap:anywhere}
pre{background:var(--panel);padding:.6rem;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
mark{background:var(--target);color:inherit;border-bottom:2px solid var(--c2)}
.shown i{font:.75rem Helvetica,Arial,sans-serif;color:var(--ground);background:var(--c1);border-radius:3px;padding:0 .35em}
@media (max-width:760px){pre.table{white-space:pre}}
.bar{margin:.6rem 0}.parts{display:flex;height:1.3rem;border-radius:3px;overflow:hidden}.parts span{min-width:2px}.parts span+span{border-left:1px solid var(--ground)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0;margin:.3rem 0;font-size:.88rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
.tip{position:absolute;pointer-events:none;background:var(--panel);border:1px solid var(--soft);border-radius:4px;padding:.2rem .5rem;
font-size:.8rem;white-space:nowrap;z-index:1}
.hide{font:inherit;font-size:.8rem;border:1px solid var(--soft);border-radius:1em;background:none;color:var(--text);padding:0 .7em;margin:.1rem .3rem .1rem 0;cursor:pointer}
.hide[aria-pressed=true]{opacity:.45;text-decoration:line-through}.tools{color:var(--quiet);font-size:.88rem}
@media print{:root{--ground:#fff;--text:#000;--quiet:#444;--soft:#ccc;--panel:#f4f4f4;--target:#c9eadf;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#8c564b;--c7:#6e6e6e}
body{max-width:none;padding:0}.tools,.hide,.tip{display:none}.wide{overflow:visible}td{white-space:normal;overflow-wrap:anywhere}figure,.bar,tr{break-inside:avoid}h2{break-after:avoid}.plots{grid-template-columns:1fr 1fr}
.parts span,.legend i,mark,.shown i{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)css";

const std::string_view page_script = R"js(
'use strict';
(() => {
  const plots = [...document.querySelectorAll('svg.plot')].map(svg => {
    const [left, top, width, height] = svg.dataset.frame.split(' ').map(Number);
    const [x0, x1, y0, y1] = ['x0', 'x1', 'y0', 'y1'].map(key => Number(svg.dataset[key]));
    const log = svg.dataset.log === '1', logX = svg.dataset.logX === '1';
    const curves = [...svg.querySelectorAll('.curve')].map(element => {
      const text = element.getAttribute('points') || element.dataset.points;
      const points = text.split(' ').map(pair => pair.split(',').map(Number));
      return {element, name: element.dataset.name, colour: element.getAttribute('stroke') || element.dataset.paint, points, shown: points};
    });
    const toX = px => {
      const part = (px - left) / width;
      return logX ? Math.round(x0 * Math.pow(x1 / x0, part)) : x0 + part * (x1 - x0);
    };
    const toY = py => {
      const part = 1 - (py - top) / height;
      return log ? Math.pow(10, Math.log10(y0) + part * (Math.log10(y1) - Math.log10(y0))) : y0 + part * (y1 - y0);
    };
    return {svg, left, top, width, height, curves, toX, toY};
  });
  const text = value => Math.abs(value) >= 1e5 || (Math.abs(value) < 1e-3 && value !== 0) ? value.toPrecision(4) : String(+value.toPrecision(4));

  let smoothed = false;
  for (const plot of plots) {
    const figure = plot.svg.parentElement, tip = document.createElement('div');
    const cross = document.createElementNS('http://www.w3.org/2000/svg', 'line');
    tip.className = 'tip';
    tip.hidden = true;
    figure.append(tip);
    for (const [key, value] of Object.entries({y1: plot.top, y2: plot.top + plot.height, stroke: 'currentColor', opacity: 0.4}))
      cross.setAttribute(key, value);
    const leave = () => { tip.hidden = true; cross.remove(); };
    plot.svg.addEventListener('pointerleave', leave);
    plot.svg.addEventListener('pointermove', event => {
      const box = plot.svg.getBoundingClientRect(), scale = plot.svg.viewBox.baseVal.width / box.width;
      const px = (event.clientX - box.left) * scale;
      if (px < plot.left || px > plot.left + plot.width) return leave();
      const nearest = new Map();
      for (const {element, name, colour, shown} of plot.curves) {
        if (element.style.display === 'none') continue;
        let low = 0, high = shown.length - 1;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (shown[middle][0] < px) low = middle + 1; else high = middle;
        }
        if (low > 0 && px - shown[low - 1][0] < shown[low][0] - px) --low;
        const distance = Math.abs(shown[low][0] - px), known = nearest.get(name);
        if (!known || distance < known.distance) nearest.set(name, {distance, x: shown[low][0], y: shown[low][1], colour, hint: element.dataset.points ? element.children[low].textContent.trim() : ''});
      }
      if (nearest.size === 0) return leave();
      const row = (words, colour) => {
        const made = document.createElement('div');
        made.textContent = words;
        made.style.color = colour;
        tip.append(made);
      };
      tip.textContent = '';
      const at_x = [...nearest.values()].sort((a, b) => a.distance - b.distance)[0].x;
      const place = px => `${plot.svg.dataset.x} ${plot.svg.dataset.x === 'update' ? Math.round(plot.toX(px)) : text(plot.toX(px))}`;
      row(place(at_x) + (smoothed ? ', smoothed' : ''), '');
      for (const [name, found] of nearest)
        if (Math.abs(found.x - at_x) < 8)
          row(`${found.hint || `${name}: ${text(plot.toY(found.y))}`}${Math.abs(found.x - at_x) > 0.2 ? ` (${place(found.x)})` : ''}`, found.colour);
      cross.setAttribute('x1', px);
      cross.setAttribute('x2', px);
      plot.svg.append(cross);
      tip.hidden = false;
      const at = event.clientX - box.left;
      tip.style.top = '1.5rem';
      tip.style.left = `${at + 14 + tip.offsetWidth > box.width ? Math.max(0, at - 14 - tip.offsetWidth) : at + 14}px`;
    });
    const names = [...new Set(plot.curves.map(curve => curve.name))].filter(name => name);
    if (names.length > 1)
      for (const name of names) {
        const button = document.createElement('button');
        button.className = 'hide';
        button.textContent = name;
        button.setAttribute('aria-pressed', 'false');
        button.addEventListener('click', () => {
          const hide = button.getAttribute('aria-pressed') === 'false';
          button.setAttribute('aria-pressed', String(hide));
          for (const curve of plot.curves) if (curve.name === name) curve.element.style.display = hide ? 'none' : '';
        });
        figure.append(button);
      }
  }

  addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(details => { details.open = true; }));

  const first = document.querySelector('.plots');
  if (!first || !plots.some(plot => plot.curves.some(curve => curve.points.length > 20))) return;
  const tools = document.createElement('label'), slider = document.createElement('input');
  tools.className = 'tools';
  Object.assign(slider, {type: 'range', min: '0', max: '0.99', step: '0.01', value: '0'});
  tools.append('smoothing ', slider);
  first.before(tools);
  slider.addEventListener('input', () => {
    const weight = Number(slider.value);
    smoothed = weight > 0;
    for (const plot of plots)
      for (const curve of plot.curves) {
        if (!curve.element.getAttribute('points')) continue;
        let mean = curve.points[0][1];
        curve.shown = curve.points.map(([x, y]) => [x, mean = weight * mean + (1 - weight) * y]);
        curve.element.setAttribute('points', curve.shown.map(([x, y]) => `${x},${y.toFixed(1)}`).join(' '));
      }
  });
})();
)js";

}  // namespace fsdp
