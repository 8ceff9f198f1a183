// Draws the lanes of one CTA at a time. No framework, no network: everything is in the page.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const SVG = 'http://www.w3.org/2000/svg';
const LANE = 22, GAP = 4, AXIS = 20, LABEL = 128;
const holder = document.getElementById('lanes'), under = document.getElementById('under'), chooser = document.getElementById('cta');
const ctas = [...new Set(data.lanes.map(lane => lane.cta))];
// What is seen of the time axis.
let from = 0, to = Math.max(data.end, 1);

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

const length = ticks => data.per_us > 0 ? `${(ticks / data.per_us).toFixed(3)} µs (${ticks} ${data.unit})` : `${ticks} ${data.unit}`;

// 1, 2 or 5 times a power of ten, so that about six fit.
function tickStep(span) {
  const rough = span / 6, power = 10 ** Math.floor(Math.log10(rough));
  return Math.max([1, 2, 5, 10].map(n => n * power).find(step => step >= rough), data.per_us > 0 ? 1e-6 : 1);
}

function drawAxis(svg, x, width, height) {
  const scale = data.per_us > 0 ? data.per_us : 1, unit = data.per_us > 0 ? 'µs' : data.unit;
  const step = tickStep((to - from) / scale), first = Math.ceil(from / scale / step);
  for (let n = first; n * step * scale <= to; ++n) {
    const at = x(n * step * scale);
    element('line', {x1: at, x2: at, y1: 0, y2: height - AXIS, class: 'axis'}, svg);
    const end = at > width - 60;
    element('text', {x: at, y: height - 5, 'text-anchor': end ? 'end' : 'start'}, svg).textContent = `${+(n * step).toPrecision(6)} ${unit}`;
  }
}

// Segments narrower than half a pixel share a rectangle with their neighbours: the widest of them gives the colour.
function drawLane(svg, lane, y, x, right) {
  const s = lane.segments;
  let pending = null;
  const flush = () => {
    if (!pending) return;
    element('rect', {x: pending.left, y, width: Math.max(pending.right - pending.left, .3), height: LANE, 'data-at': pending.at,
                     class: `a-${data.activities[s[pending.at]].word}`}, svg);
    pending = null;
  };
  for (let i = 0; i < s.length; i += 4) {
    if (s[i + 3] < from || s[i + 2] > to || s[i + 3] === s[i + 2]) continue;
    const left = Math.max(x(s[i + 2]), LABEL), end = Math.min(x(s[i + 3]), right), width = end - left;
    if (pending && width < .5 && pending.right - pending.left < .5) {
      if (s[i + 3] - s[i + 2] > s[pending.at + 3] - s[pending.at + 2]) pending.at = i;
      pending.right = end;
    } else {
      flush();
      pending = {left, right: end, at: i};
    }
  }
  flush();
}

function draw() {
  const lanes = data.lanes.filter(lane => lane.cta === Number(chooser.value));
  const width = Math.max(holder.clientWidth, 280), height = lanes.length * (LANE + GAP) + AXIS;
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const x = ticks => LABEL + (ticks - from) / (to - from) * (width - LABEL);
  drawAxis(svg, x, width, height);
  lanes.forEach((lane, row) => {
    const y = row * (LANE + GAP);
    element('text', {x: 0, y: y + 15}, svg).textContent = `warp ${lane.warp}: ${lane.role}`;
    element('rect', {x: LABEL, y, width: width - LABEL, height: LANE, class: 'back'}, svg);
    const group = element('g', {'data-lane': data.lanes.indexOf(lane)}, svg);
    drawLane(group, lane, y, x, width);
  });
  holder.replaceChildren(svg);
}

function view(begin, end) {
  const most = Math.max(data.end, 1), span = Math.min(Math.max(end - begin, Math.min(10, most)), most);
  from = Math.min(Math.max(begin, 0), most - span);
  to = from + span;
  draw();
}
function zoom(factor, at = (from + to) / 2) { view(at - (at - from) * factor, at + (to - at) * factor); }
function move(share) { view(from + share * (to - from), to + share * (to - from)); }
function timeAt(event) {
  const box = holder.getBoundingClientRect();
  return from + Math.max(event.clientX - box.left - LABEL, 0) / Math.max(box.width - LABEL, 1) * (to - from);
}

function legend() {
  const used = new Set();
  for (const lane of data.lanes) for (let i = 0; i < lane.segments.length; i += 4) used.add(lane.segments[i]);
  const list = document.getElementById('legend');
  let waits = false;
  for (const index of [...used].sort((a, b) => a - b)) {
    const activity = data.activities[index];
    if (activity.wait && waits) continue;
    waits = waits || activity.wait;
    const item = document.createElement('li'), swatch = document.createElement('span');
    swatch.className = `swatch a-${activity.word}`;
    item.append(swatch, activity.wait ? 'waits' : activity.title);
    list.append(item);
  }
}

function start() {
  for (const cta of ctas) {
    const sm = data.lanes.find(lane => lane.cta === cta).sm, option = document.createElement('option');
    option.value = cta;
    option.textContent = sm === null ? cta : `${cta} on SM ${sm}`;
    chooser.append(option);
  }
  legend();
  chooser.addEventListener('change', draw);
  document.getElementById('zoom-in').addEventListener('click', () => zoom(.5));
  document.getElementById('zoom-out').addEventListener('click', () => zoom(2));
  document.getElementById('left').addEventListener('click', () => move(-.5));
  document.getElementById('right').addEventListener('click', () => move(.5));
  document.getElementById('whole').addEventListener('click', () => view(0, data.end));
  holder.addEventListener('wheel', event => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : .8, timeAt(event));
  }, {passive: false});
  let held = null;
  holder.addEventListener('pointerdown', event => { held = event.clientX; });
  addEventListener('pointerup', () => { held = null; });
  addEventListener('pointermove', event => {
    if (held === null) return;
    const share = (held - event.clientX) / Math.max(holder.clientWidth - LABEL, 1);
    held = event.clientX;
    move(share);
  });
  holder.addEventListener('pointerover', event => {
    if (event.target.dataset.at === undefined) return;
    const lane = data.lanes[event.target.parentNode.dataset.lane], at = Number(event.target.dataset.at), s = lane.segments;
    under.textContent = `warp ${lane.warp}, ${data.activities[s[at]].title}, block ${s[at + 1]}: ${length(s[at + 3] - s[at + 2])} from ${length(s[at + 2])} on`;
  });
  addEventListener('resize', draw);
  if (ctas.length > 0) draw();
}

start();
