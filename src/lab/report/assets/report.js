// Sorts the tables and draws the charts of the report. No framework, no network: everything is in the page.
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Okabe and Ito's palette, lightened where the background is dark: told apart by colour-blind readers.
const dark = () => matchMedia('(prefers-color-scheme: dark)').matches;
const colours = () => dark()
  ? {winner: '#56b4e9', other: '#e69f00', floor: '#a0a5ac', good: '#2fbf91', bad: '#f07f4f', clock: '#cc79a7'}
  : {winner: '#0072b2', other: '#c98500', floor: '#6b7078', good: '#00875f', bad: '#c8501b', clock: '#a8578a'};
const narrow = () => innerWidth < 640;

// --- tables ----------------------------------------------------------------------------------------------------------

function cellValue(row, column) {
  const cell = row.cells[column];
  return cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell.textContent.trim();
}

function sortBy(table, column, direction) {
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const x = cellValue(a, column), y = cellValue(b, column);
    return direction * (typeof x === 'number' ? x - y : x.localeCompare(y, undefined, {numeric: true}));
  });
  table.tBodies[0].append(...rows);
}

// On a narrow screen each row is a card, and each of its cells says what it is (report.css).
function labelCells(table) {
  const names = [...table.tHead.rows[0].cells].map(header => header.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = names[column]; });
  table.classList.add('labelled');
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((header, column, headers) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener('click', () => {
      const descending = header.getAttribute('aria-sort') === 'ascending';
      headers.forEach(each => each.removeAttribute('aria-sort'));
      header.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
      sortBy(table, column, descending ? -1 : 1);
    });
  });
}

// --- charts ----------------------------------------------------------------------------------------------------------

function layout(height, extra) {
  const axis = {gridcolor: css('--line'), zerolinecolor: css('--line'), linecolor: css('--line'), automargin: true, fixedrange: narrow()};
  const merged = {
    height, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', margin: {l: 10, r: 16, t: 16, b: 40},
    font: {family: getComputedStyle(document.body).fontFamily, size: narrow() ? 11 : 13, color: css('--ink')},
    hoverlabel: {bgcolor: css('--card'), bordercolor: css('--line'), font: {color: css('--ink')}, align: 'left'},
    legend: {orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0}, ...extra,
  };
  for (const name of ['xaxis', 'yaxis', 'yaxis2']) {
    if (name !== 'yaxis2' || merged.yaxis2) merged[name] = {...axis, ...(merged[name] || {})};
  }
  return merged;
}

function draw(id, traces, chartLayout) {
  const element = document.getElementById('chart-' + id);
  if (traces.length === 0) {
    Plotly.purge(element);
    element.classList.add('empty');
    element.textContent = 'Nothing was measured for this chart.';
    return;
  }
  if (element.classList.contains('empty')) {
    element.classList.remove('empty');
    element.textContent = '';
  }
  Plotly.react(element, traces, chartLayout, {responsive: true, displayModeBar: false});
}

const round = value => Number(value.toPrecision(3));
// Plotly reads tags in its texts, links too; names may hold anything.
const escapeHtml = text => text.replace(/[&<>"']/g, c => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;'}[c]));
const shortLabel = text => {
  const most = narrow() ? 16 : 40, letters = [...text];
  return escapeHtml(letters.length <= most ? text : letters.slice(0, most - 6).join('') + '…' + letters.slice(-5).join(''));
};
// A long candidate in a hover box, broken at commas.
const wrap = text => escapeHtml(text).replace(/((?:[^,]*,){3})/g, '$1<br>');

function drawSpeedups() {
  const colour = colours();
  const shown = data.problems.filter(problem => problem.speedup && problem.speedup.value !== null).reverse();
  const colourOf = ({speedup}) => speedup.verdict === 'FASTER' ? colour.good : speedup.verdict === 'SLOWER' ? colour.bad : colour.floor;
  const trace = {
    type: 'scatter', mode: 'markers', y: shown.map((_, i) => i), x: shown.map(p => p.speedup.value),
    error_x: {type: 'data', symmetric: false, thickness: 2, width: 5, color: css('--muted'),
      array: shown.map(p => (p.speedup.high ?? p.speedup.value) - p.speedup.value),
      arrayminus: shown.map(p => p.speedup.value - (p.speedup.low ?? p.speedup.value))},
    marker: {size: 11, color: shown.map(colourOf), symbol: shown.map(p => p.stale ? 'circle-open' : 'circle')},
    text: shown.map(p => `<b>${escapeHtml(p.label)}</b>: ${escapeHtml(p.speedup.verdict)}<br>${round(p.speedup.value)}× ` +
      (p.speedup.low === null ? '' : `[${round(p.speedup.low)}, ${round(p.speedup.high)}]`) + `<br>against ${wrap(p.speedup.against)}`),
    hovertemplate: '%{text}<extra></extra>', showlegend: false,
  };
  const ends = [1, ...shown.flatMap(p => [p.speedup.low ?? p.speedup.value, p.speedup.high ?? p.speedup.value])];
  const margin = .06 * Math.max(.02, Math.max(...ends) - Math.min(...ends));
  const one = {type: 'line', x0: 1, x1: 1, yref: 'paper', y0: 0, y1: 1, line: {color: css('--muted'), width: 1.5, dash: 'dot'}};
  draw('speedup', shown.length ? [trace] : [], layout(90 + 30 * Math.max(2, shown.length), {
    shapes: [one], xaxis: {title: {text: 'speed-up (× as fast)'}, range: [Math.min(...ends) - margin, Math.max(...ends) + margin], ticksuffix: '×'},
    yaxis: {tickvals: shown.map((_, i) => i), ticktext: shown.map(p => shortLabel(p.label)), range: [-0.6, shown.length - 0.4], zeroline: false, fixedrange: true}}));
}

function drawFunnel(choice) {
  const chosen = choice < 0 ? data.problems : [data.problems[choice]];
  const total = data.stages.map((_, stage) => chosen.reduce((sum, problem) => sum + problem.funnel[stage], 0));
  const share = total.map(value => total[0] ? value / total[0] : 0);
  const lost = total.map((value, stage) => stage ? total[stage - 1] - value : 0);
  const colour = colours();
  const trace = {
    type: 'funnel', y: data.stages, x: total, textposition: 'auto', hoverinfo: 'text',
    texttemplate: total.map((value, i) => `${value}  (${Math.round(share[i] * 100)}%)`),
    hovertext: total.map((value, i) => `<b>${data.stages[i]}</b>: ${value}` + (i ? `<br>${lost[i]} fewer than ${data.stages[i - 1]}` : '')),
    marker: {color: total.map((_, i) => i === total.length - 1 ? colour.good : colour.winner)},
    insidetextfont: {color: dark() ? '#101214' : '#ffffff'}, outsidetextfont: {color: css('--ink')}, connector: {fillcolor: dark() ? 'rgba(86,180,233,.12)' : 'rgba(0,114,178,.08)', line: {width: 0}},
  };
  draw('funnel', total[0] ? [trace] : [], layout(320, {funnelmode: 'stack', yaxis: {type: 'category', fixedrange: true}, xaxis: {visible: false}}));
}

const decades = (low, high) => [Math.floor(Math.log10(low) * 4 - 1) / 4, Math.ceil(Math.log10(high) * 4 + 1) / 4];

// Whole numbers as labels, as many as can be read: powers of ten, or 1, 2, 5 of each, or more where the range is short.
function logTicks(range) {
  const most = narrow() ? 5 : 9;
  const candidates = [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]].map(steps => {
    const ticks = [];
    for (let power = Math.floor(range[0]); power <= Math.ceil(range[1]); ++power) {
      for (const step of steps) {
        const value = step * 10 ** power;
        if (Math.log10(value) >= range[0] && Math.log10(value) <= range[1]) ticks.push(value);
      }
    }
    return ticks;
  });
  const tickvals = candidates.find(ticks => ticks.length <= most) || candidates[candidates.length - 1];
  return {range, tickvals, ticktext: tickvals.map(value => round(value).toLocaleString('en')), tickmode: 'array'};
}

// What bounds a problem of intensity x: arithmetic, or the bytes that arrive.
function ceilingTraces(xRange, yRange) {
  const steps = 60, x = [...Array(steps + 1).keys()].map(i => 10 ** (xRange[0] + (xRange[1] - xRange[0]) * i / steps));
  const traces = [];
  for (const ceiling of data.ceilings) {
    const suffix = data.ceilings.length > 1 ? ` (${escapeHtml(ceiling.device)})` : '';
    for (const [peak, name] of [[ceiling.matmul_tflops, 'matmul'], [ceiling.fma_tflops, 'FMA fp32']]) {
      if (!peak || peak > 30 * 10 ** yRange[1]) continue;
      traces.push({type: 'scatter', mode: 'lines', name: `${name} ceiling${suffix}`, x, hoverinfo: 'name', line: {width: 1.5, color: css('--muted'), dash: name === 'matmul' ? 'solid' : 'dash'},
        y: x.map(value => Math.min(peak, ceiling.read_gbps ? value * ceiling.read_gbps / 1000 : peak))});
    }
  }
  return traces;
}

function drawRoofline() {
  const colour = colours(), shown = data.problems.filter(problem => problem.roofline);
  if (shown.length === 0) return draw('roofline', [], {});
  const values = shown.flatMap(p => [p.roofline.winner, p.roofline.default, p.roofline.floor]).filter(value => value > 0);
  const xRange = decades(Math.min(...shown.map(p => p.roofline.intensity)), Math.max(...shown.map(p => p.roofline.intensity)));
  const yRange = decades(Math.min(...values), Math.max(...values));
  const links = {x: [], y: []};
  for (const {roofline} of shown) {
    const ends = [roofline.default, roofline.winner, roofline.floor].filter(value => value > 0);
    links.x.push(roofline.intensity, roofline.intensity, null);
    links.y.push(Math.min(...ends), Math.max(...ends), null);
  }
  const series = (key, name, marker) => {
    const points = shown.filter(p => p.roofline[key] > 0);
    return {type: 'scatter', mode: 'markers', name, marker, x: points.map(p => p.roofline.intensity), y: points.map(p => p.roofline[key]),
      text: points.map(p => `<b>${escapeHtml(p.label)}</b> ${name}<br>${round(p.roofline[key])} TFLOP/s at ${round(p.roofline.intensity)} FLOP/byte` +
        (key !== 'floor' && p.roofline.floor ? `<br>${(p.roofline.floor / p.roofline[key]).toFixed(2)}× the floor's time` : '')), hovertemplate: '%{text}<extra></extra>'};
  };
  draw('roofline', [
    ...ceilingTraces(xRange, yRange),
    {type: 'scatter', mode: 'lines', ...links, line: {color: colour.floor, width: 1}, opacity: .6, hoverinfo: 'skip', showlegend: false},
    series('floor', 'floor', {symbol: 'line-ew-open', size: 16, color: colour.floor, line: {width: 2.5}}),
    series('default', 'default', {symbol: 'circle-open', size: 9, color: colour.other, line: {width: 2}}),
    series('winner', 'winner', {symbol: 'circle', size: 10, color: colour.winner}),
  ].filter(trace => trace.x.length), layout(narrow() ? 380 : 440, {
    xaxis: {type: 'log', ...logTicks(xRange), title: {text: 'FLOP per byte'}},
    yaxis: {type: 'log', ...logTicks(yRange), title: {text: 'TFLOP/s'}}}));
}

// All values, and at least 5% on either side of the middle: noise should look like noise.
function spread(values) {
  const known = values.filter(value => value !== null).sort((a, b) => a - b);
  const middle = known[known.length >> 1], low = Math.min(known[0], middle * .95), high = Math.max(known[known.length - 1], middle * 1.05);
  return [low - (high - low) * .04, high + (high - low) * .04];
}

function drawSamples(choice) {
  const problem = data.problems[choice], colour = colours(), traces = [];
  for (const series of problem.samples) {
    const hue = series.role === 'winner' ? colour.winner : colour.other;
    traces.push({type: 'scatter', mode: 'markers', name: escapeHtml(series.role), x: series.index, y: series.time_us, marker: {size: 6, color: hue, opacity: .8},
      text: wrap(series.candidate), hovertemplate: '%{y:.4g} µs, sample %{x}<br>%{text}<extra></extra>'});
    if (series.clock_mhz.length) {
      traces.push({type: 'scatter', mode: 'lines', name: `clock, ${escapeHtml(series.role)}`, x: series.index, y: series.clock_mhz, yaxis: 'y2', opacity: .7,
        line: {width: 1.5, color: colour.clock, dash: series.role === 'winner' ? 'solid' : 'dot'}, hovertemplate: '%{y:.0f} MHz<extra></extra>'});
    }
  }
  const drawn = traces.filter(trace => trace.x.length);
  const onAxis = axis => drawn.filter(trace => (trace.yaxis === 'y2') === axis).flatMap(trace => trace.y);
  const times = onAxis(false), clocks = onAxis(true);
  if (times.length === 0) return draw('samples', [], {});
  const last = Math.max(1, ...drawn.map(trace => trace.x[trace.x.length - 1]));
  // A floor far below would press the samples flat; the table has it.
  if (problem.floor_us > .6 * Math.min(...times.filter(value => value !== null))) {
    times.push(problem.floor_us);
    drawn.push({type: 'scatter', mode: 'lines', name: 'floor', x: [0, last], y: [problem.floor_us, problem.floor_us], line: {color: colour.floor, width: 1.5, dash: 'dot'},
      hovertemplate: 'floor %{y:.4g} µs<extra></extra>'});
  }
  draw('samples', drawn, layout(380, {
    xaxis: {title: {text: 'sample'}, range: [-0.02 * last, 1.02 * last], zeroline: false},
    yaxis: {title: {text: 'time per launch (µs)'}, range: spread(times), exponentformat: 'none'},
    ...(clocks.length ? {yaxis2: {title: {text: 'clock (MHz)'}, overlaying: 'y', side: 'right', showgrid: false, range: spread(clocks)}} : {})}));
}

// --- start -----------------------------------------------------------------------------------------------------------

function choose(id, options, redraw) {
  const select = document.querySelector(`select[data-for=${id}]`);
  for (const [value, label] of options) select.add(new Option(label, value));
  select.addEventListener('change', () => redraw(Number(select.value)));
  return () => redraw(Number(select.value));
}

function start() {
  const each = data.problems.map((problem, index) => [index, problem.label]);
  const redraws = [
    drawSpeedups, drawRoofline,
    choose('funnel', each.length > 1 ? [[-1, 'all problems'], ...each] : each, drawFunnel),
    choose('samples', each.filter(([index]) => data.problems[index].samples.length).concat(data.problems.some(p => p.samples.length) ? [] : each), drawSamples),
  ];
  const redraw = () => redraws.forEach(one => one());
  redraw();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
}

async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById('plotly').textContent), c => c.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  // Plotly would bring a style sheet for its maps, which the page has none of, unless an element of its name is there.
  for (const [, id] of text.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) {
    const taken = document.createElement('template');
    taken.id = id;
    document.head.append(taken);
  }
  // The policy lets scripts of ours load what they have unpacked, and nothing else.
  const script = document.createElement('script');
  script.src = URL.createObjectURL(new Blob([text], {type: 'text/javascript'}));
  const loaded = new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; });
  document.head.append(script);
  await loaded;
  URL.revokeObjectURL(script.src);
}

for (const table of document.querySelectorAll('table.sortable')) {
  labelCells(table);
  makeSortable(table);
}
if (typeof DecompressionStream === 'undefined') {
  const notice = document.getElementById('charts-failed');
  notice.textContent = 'This browser is too old to draw the charts (it lacks DecompressionStream, which browsers have had since 2023). Every number in them is also in a table.';
  notice.hidden = false;
} else {
  loadPlotly().then(start);
}
