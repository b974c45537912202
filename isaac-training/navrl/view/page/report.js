// Draws the curves of a report with uPlot, and opens its replay when asked. Data is only ever shown as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const HEIGHT = { false: 300, true: 170 }; // px, of a chart and of a small one
  const plots = []; // {chart, place, plot}
  let axis = "frames";
  let whole = null, stretch = null; // {min, max} of x: all there is, and what all charts show

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clear = (colour, share) => colour + Math.round(255 * share).toString(16).padStart(2, "0");
  const shown = (value) => (value == null ? "–" : Math.abs(value) >= 1e5 ? value.toLocaleString("en") : String(+value.toPrecision(4)));

  // The value at a place, or the last one before it: evaluations are rare.
  function known(values, k) {
    while (k > 0 && values[k] == null) k--;
    return values[k];
  }

  // x and y of every series of a chart over the chosen axis, on one common x. Stacked shares are sums, from below.
  function aligned(chart) {
    const blocks = [];
    let table = null;
    for (const series of chart.series) {
      const xs = data.tables[series.table][axis], ys = Array.isArray(series.y) ? series.y : series.y[axis];
      const kept = xs.map((x, k) => k).filter((k) => xs[k] !== null);
      if (series.table !== table) blocks.push([kept.map((k) => xs[k])]);
      blocks[blocks.length - 1].push(kept.map((k) => (ys[k] === undefined ? null : ys[k])));
      table = series.table;
    }
    const joined = blocks.length > 1 ? uPlot.join(blocks) : blocks[0];
    return chart.stacked ? stacked(joined) : joined;
  }

  function stacked([x, ...shares]) {
    const sums = new Array(x.length).fill(0);
    return [x, ...shares.map((share) => share.map((value, k) => (sums[k] += value)))];
  }

  function options(chart, width, plain) {
    const text = () => css("--muted"), grid = () => css("--grid");
    const tick = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const series = chart.series.map((one, number) => ({
      label: one.label,
      class: one.quiet || (chart.small && one.faint) ? "quiet" : undefined,
      stroke: one.edge ? clear(one.colour, 0.25) : one.faint ? clear(one.colour, 0.4) : one.colour,
      width: one.edge ? 0.5 : one.faint ? 1 : one.width || (chart.stacked ? 1 : 2),
      fill: chart.stacked && number === 0 ? clear(one.colour, 0.7) : undefined,
      spanGaps: true,
      points: { show: Boolean(one.points), size: 6, fill: one.colour },
      value: (plot, value, index, k) => shown(k == null ? null : known(chart.stacked ? plain[index] : plot.data[index], k)),
    }));
    const bands = [];
    chart.series.forEach((one, number) => {
      if (chart.stacked && number) bands.push({ series: [number + 1, number], fill: clear(one.colour, 0.7) });
      if (one.edge === 1) bands.push({ series: [number + 1, number + 2], fill: clear(one.colour, 0.15) });
    });
    return {
      width,
      height: HEIGHT[chart.small],
      series: [{ label: axis === "frames" ? "M frames" : "minutes", value: (plot, value) => shown(value) }, ...series],
      bands,
      scales: {
        x: { time: false, ...stretch },
        y: chart.high === undefined ? {} : { range: [chart.low, chart.high] },
      },
      axes: [
        { ...tick, values: (plot, ticks) => ticks.map(shown), size: 32 },
        { ...tick, values: (plot, ticks) => ticks.map(shown), size: 52 },
      ],
      cursor: {
        sync: { key: "curves", setSeries: false },
        drag: { x: true, y: false },
        focus: { prox: 24 },
        bind: { dblclick: () => () => show(whole) },
      },
      focus: { alpha: 0.35 },
      legend: { markers: { width: 0, fill: (plot, index) => chart.series[index - 1].colour } },
      hooks: { setCursor: [rest], drawClear: [(plot) => drawLines(plot, chart.lines || [])], setScale: [follow], ready: [rest, touchable] },
    };
  }

  // Without a cursor the legend shows the last values.
  function rest(plot) {
    if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 });
  }

  // Dotted lines at a height: NavRL's published policy.
  function drawLines(plot, lines) {
    const { left, width } = plot.bbox, pen = plot.ctx;
    pen.save();
    pen.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
    pen.lineWidth = 1.5 * devicePixelRatio;
    for (const line of lines) {
      const y = plot.valToPos(line.y, "y", true);
      pen.strokeStyle = line.colour || css("--text");
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(left + width, y);
      pen.stroke();
    }
    pen.restore();
  }

  // All charts show the same stretch of training. (uPlot calls this later, when it has set a scale.)
  function follow(plot, scale) {
    const { min, max } = plot.scales.x;
    if (scale === "x" && (min !== stretch.min || max !== stretch.max)) show({ min, max });
  }

  function show(wanted) {
    stretch = wanted;
    for (const { plot } of plots) if (plot) plot.setScale("x", stretch);
    document.getElementById("reset").hidden = stretch.min === whole.min && stretch.max === whole.max;
  }

  // A finger drawn sideways is the mouse's drag; up and down it scrolls the page. (uPlot ignores a drag
  // that does not move.)
  function touchable(plot) {
    const pass = (kind, target) => (event) => {
      const { clientX, clientY } = event.changedTouches[0];
      target.dispatchEvent(new MouseEvent(kind, { clientX, clientY, movementX: 1, bubbles: true, view: window }));
    };
    plot.over.addEventListener("touchstart", pass("mousedown", plot.over), { passive: true });
    plot.over.addEventListener("touchmove", pass("mousemove", plot.over), { passive: true });
    plot.over.addEventListener("touchend", pass("mouseup", document), { passive: true });
  }

  function draw() {
    const ends = { min: Infinity, max: -Infinity };
    for (const x of data.tables.flatMap((table) => table[axis])) {
      if (x !== null) Object.assign(ends, { min: Math.min(ends.min, x), max: Math.max(ends.max, x) });
    }
    whole = stretch = ends;
    document.getElementById("reset").hidden = true;
    for (const item of plots) {
      if (item.plot) item.plot.destroy();
      item.plot = null;
      const values = aligned(item.chart);
      item.place.classList.toggle("empty", !values[0].length);
      item.place.textContent = values[0].length ? "" : `not recorded over ${axis}`;
      if (!values[0].length) continue;
      const plain = [null, ...item.chart.series.map((one) => one.y)];
      item.plot = new uPlot(options(item.chart, item.place.clientWidth, plain), values, item.place);
    }
  }

  for (const place of document.querySelectorAll("[data-chart]")) {
    plots.push({ chart: data.charts[Number(place.dataset.chart)], place, plot: null });
  }
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
      draw();
    });
  }
  if (plots.length) {
    document.getElementById("reset").addEventListener("click", () => show(whole));
    draw();
    new ResizeObserver(() => {
      for (const { chart, place, plot } of plots) {
        if (plot && plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT[chart.small] });
      }
    }).observe(document.querySelector("main"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(({ plot }) => plot && plot.redraw()));
  }

  // The replay is a page of its own, in a frame that may run its script and touch nothing of this page.
  const play = document.getElementById("play");
  if (play) {
    play.addEventListener("click", () => {
      const frame = document.createElement("iframe");
      frame.title = "replay";
      frame.setAttribute("sandbox", "allow-scripts");
      frame.srcdoc = data.replay;
      play.replaceWith(frame);
    });
  }
})();
