// The page's controls. explorer.py makes every number shown; the only formula here is M = floor(C / (B_p n)),
// of several batches where an update samples several (row.batches).
(() => {
  "use strict";
  const content = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const plotly = window.Plotly;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const state = { fit: content.fits[0], view: content.fits[0].views[0], row: null, C: 0 };

  const names = (fit) => fit.metric + (fit.unit === content.fits[0].unit ? "" : ` in ${fit.unit}`);
  const whole = (x) => x.toLocaleString("en-US", { maximumFractionDigits: 3 });

  function offer(select, choices, chosen) {
    select.replaceChildren(...choices.map(([value, text]) => new Option(text, value, false, value === chosen)));
    select.value = chosen;
    select.disabled = choices.length < 2;
  }

  const distinct = (values) => [...new Set(values)].map((value) => [value, value]);

  function offerAll() {
    offer(at("metric"), distinct(content.fits.map(names)), names(state.fit));
    offer(at("mode"), distinct(content.fits.filter((fit) => names(fit) === names(state.fit)).map((fit) => fit.mode)), state.fit.mode);
    offer(at("B_p"), distinct(state.fit.views.map((view) => view.name)), state.view.name);
    const rows = state.view.rows;
    at("slider").max = rows.length - 1;
    at("exact").min = rows[0].C;
    at("exact").max = rows[rows.length - 1].C;
    at("hint").textContent =
      `From ${whole(rows[0].C)} to ${whole(rows[rows.length - 1].C)} ${state.fit.unit}: the smallest measured budget to 4 times the largest.`;
    document.querySelectorAll(".unit").forEach((element) => { element.textContent = state.fit.unit; });
    at("out-metric").textContent = state.fit.metric;
  }

  // The row whose budget is nearest, as a ratio.
  function nearest(C) {
    const distance = (row) => Math.max(row.C / C, C / row.C);
    return state.view.rows.reduce((best, row) => (distance(row) < distance(best) ? row : best));
  }

  function choose(fit, viewName) {
    const C = state.C;
    state.fit = fit;
    state.view = fit.views.find((view) => view.name === viewName) || fit.views[0];
    offerAll();
    const rows = state.view.rows;
    setBudget(Math.min(Math.max(C, rows[0].C), rows[rows.length - 1].C));
    drawCharts();
  }

  function setBudget(C, typing) {
    const rows = state.view.rows;
    const outside = !(C >= rows[0].C && C <= rows[rows.length - 1].C);
    at("exact").setAttribute("aria-invalid", String(outside));
    if (outside) {
      state.row = null;
      moveMarker();
      fill(null, `Give a budget from ${whole(rows[0].C)} to ${whole(rows[rows.length - 1].C)} ${state.fit.unit}: no measurement supports others.`);
      return;
    }
    state.C = C;
    state.row = nearest(C);
    at("slider").value = rows.indexOf(state.row);
    at("slider").setAttribute("aria-valuetext", `${whole(C)} ${state.fit.unit}`);
    if (!typing) at("exact").value = C;
    fill(state.row, "");
    moveMarker();
  }

  function fill(row, refusal) {
    const answered = row !== null && row.why === undefined;
    const updates = () => Math.floor(state.C / (row.B_p * row.n * (row.batches ?? 1)));
    const M = answered && row.M !== undefined ? updates() : null;
    const put = (id, value) => { at(id).textContent = answered ? value : "–"; };
    put("out-n", answered && whole(row.n));
    put("out-B_p", answered && whole(row.B_p));
    put("out-M", M === null ? "–" : whole(M));
    put("out-reward", answered && row.reward);
    if (answered && row.interval) at("out-reward").append(small(row.interval));
    const status = at("out-status");
    status.textContent = answered ? words(row, M) : refusal || row.why;
    status.className = answered && !row.extrapolated ? "" : "warn";
    probabilities(answered ? row.probabilities : []);
    announce(answered ? `C ${whole(state.C)}: n ${row.n}, B_p ${row.B_p}, M ${M === null ? "unknown" : whole(M)}, ` +
      `expected ${row.reward}${row.interval ? `, ${row.interval}` : ""}. ${words(row, M)}` : status.textContent);
  }

  function small(text) {
    const element = document.createElement("small");
    element.textContent = ` ${text}`;
    return element;
  }

  function words(row, M) {
    const sentences = [row.extrapolated ? "Beyond the measured budgets: the reward is extrapolated." : "Within the measured budgets."];
    if (M === 0) sentences.push("This budget is too small for one update.");
    if (row.interval && state.fit.level) sentences.push(`${state.fit.level} interval of the expected reward: ${row.interval}.`);
    return [...sentences, row.words].join(" ");
  }

  function probabilities(rows) {
    at("out-probabilities").replaceChildren(...rows.map(([n, text, share]) => {
      const line = document.createElement("div");
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.setProperty("--share", share);
      bar.style.setProperty("--colour", colour(n));
      const name = document.createElement("span");
      name.textContent = `n = ${n}`;
      const value = document.createElement("span");
      value.textContent = text;
      line.append(name, bar, value);
      return line;
    }));
  }

  // Announced to screen readers once the slider rests, not at every step.
  let waiting = 0;
  function announce(text) {
    clearTimeout(waiting);
    waiting = setTimeout(() => { at("spoken").textContent = text; }, 400);
  }

  const colour = (n) => content.colours[dark.matches ? "dark" : "light"][n];
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A trace's meta names what it shows; the page chooses its colours, light or dark.
  function painted(trace) {
    const { n, role } = trace.meta;
    const ink = token("--ink"), law = token("--law");
    const hue = n !== undefined ? colour(n) : role === "law" ? law : ink;
    const copy = { ...trace, hoverlabel: { bgcolor: token("--card"), bordercolor: hue, font: { color: ink } } };
    if (trace.fill) return { ...copy, fillcolor: `${hue}${n === undefined ? "2c" : "66"}`, line: { ...trace.line, color: "rgba(0,0,0,0)" } };
    if (trace.line) copy.line = { ...trace.line, color: hue };
    if (trace.marker) copy.marker = { ...trace.marker, color: role ? token("--paper") : hue, line: { ...trace.marker.line, color: role ? ink : hue } };
    if (trace.error_x) copy.error_x = { ...trace.error_x, color: ink };
    return copy;
  }

  const narrow = () => innerWidth < 600;

  function layout(name) {
    const plan = state.fit.layouts[name], ink = token("--ink"), line = token("--line");
    // On a phone the labels of 2k and 5k would meet those of 1k and 10k.
    const sparse = (texts) => texts.map((text) => narrow() && !/^10*\D?$/.test(text) ? "" : text);
    const axis = (settings) => ({ ...settings, gridcolor: line, linecolor: line, zeroline: false, fixedrange: false });
    return { ...plan, xaxis: axis({ ...plan.xaxis, ticktext: sparse(plan.xaxis.ticktext) }), yaxis: axis(plan.yaxis), font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, modebar: { bgcolor: "rgba(0,0,0,0)", color: token("--soft"), activecolor: token("--accent") }, uirevision: name };
  }

  // One entry in the legend for each n, whichever of its curves comes first.
  function legended(traces) {
    const seen = new Set();
    return traces.map((trace) => {
      const key = trace.legendgroup || trace.name;
      const shown = trace.showlegend !== false && Boolean(key) && !seen.has(key);
      if (shown) seen.add(key);
      return { ...painted(trace), showlegend: shown };
    });
  }

  // Six pixels to each side, in the axis's own units (plotly's sizes in pixels fail on log axes).
  const around = (axis, value) => [-6, 6].map((pixels) => axis.p2d(axis.d2p(value) + pixels));

  // What stays whatever the budget: where the data end, and the base policy's reward.
  function landmarks({ meta: { measured_to, base }, xaxis }) {
    const soft = token("--soft"), font = { color: soft, size: 10 };
    const beyond = { type: "rect", layer: "below", xref: "x", yref: "paper", x0: measured_to, x1: 10 ** xaxis.range[1], y0: 0, y1: 1, fillcolor: token("--line"), opacity: 0.35, line: { width: 0 },
      label: { text: narrow() ? "" : "not measured", textposition: "bottom left", font } };
    if (base === null) return [beyond];
    const start = { type: "line", layer: "below", xref: "paper", yref: "y", x0: 0, x1: 1, y0: base, y1: base, line: { color: soft, width: 1, dash: "dash" },
      label: { text: `base policy ${base.toFixed(3)}`, textposition: "end", yanchor: "bottom", font } };
    return [beyond, start];
  }

  // The chosen budget: a line from bottom to top, the interval, and a point. Shapes, because they move without redrawing the curves.
  function shapes(kind, axes) {
    const row = state.row, accent = token("--accent"), C = state.C;
    const background = landmarks(state.fit.layouts[kind]);
    if (row === null) return background;
    const line = (more) => ({ type: "line", layer: "above", xref: "x", yref: "y", x0: C, x1: C, line: { color: accent, width: 1.2, dash: "dot" }, ...more });
    const drawn = [...background, line({ yref: "paper", y0: 0, y1: 1 })];
    if (row.why !== undefined) return drawn;
    const y = kind === "law" ? row.n : row.y;
    if (kind === "reward" && row.low !== null && row.high !== null) {
      drawn.push(line({ y0: row.low, y1: row.high, line: { color: accent, width: 5 }, opacity: 0.6 }));
    }
    const [[x0, x1], [y0, y1]] = [around(axes.xaxis, C), around(axes.yaxis, y)];
    drawn.push({ type: "circle", layer: "above", xref: "x", yref: "y", x0, x1, y0, y1, fillcolor: accent, line: { color: token("--paper"), width: 2 } });
    return drawn;
  }

  const charts = { reward: "chart-reward", law: "chart-n-star" };
  const drawable = () => Boolean(plotly && state.fit.layouts);

  function drawCharts() {
    document.documentElement.classList.toggle("live", drawable());
    if (!drawable()) return;
    const shown = (cell) => state.view.B_ps.includes(cell.B_p);
    const traces = { reward: [...state.fit.cells.filter(shown).map((cell) => cell.trace), ...state.view.frontier], law: state.view.law };
    for (const [kind, id] of Object.entries(charts)) {
      plotly.react(at(id), legended(traces[kind]), layout(kind),
        { responsive: true, displaylogo: false, displayModeBar: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
    }
    moveMarker();
  }

  // At most once a frame, however fast the slider moves.
  let moving = false;
  function moveMarker() {
    if (!drawable() || moving) return;
    moving = true;
    requestAnimationFrame(() => {
      moving = false;
      for (const [kind, id] of Object.entries(charts)) plotly.relayout(at(id), { shapes: shapes(kind, at(id)._fullLayout) });
    });
  }

  at("metric").addEventListener("change", (event) => {
    const same = content.fits.filter((fit) => names(fit) === event.target.value);
    choose(same.find((fit) => fit.mode === state.fit.mode) || same[0], state.view.name);
  });
  at("mode").addEventListener("change", (event) => {
    choose(content.fits.find((fit) => names(fit) === names(state.fit) && fit.mode === event.target.value), state.view.name);
  });
  at("B_p").addEventListener("change", (event) => choose(state.fit, event.target.value));
  at("slider").addEventListener("input", (event) => setBudget(state.view.rows[Number(event.target.value)].C));
  at("exact").addEventListener("input", (event) => setBudget(event.target.valueAsNumber, true));
  document.addEventListener("click", (event) => {  // a link to what is folded opens it
    const link = event.target.closest("a[href^='#']"), fold = link && at(link.hash.slice(1))?.closest("details");
    if (fold) fold.open = true;
  });
  window.addEventListener("resize", moveMarker);
  dark.addEventListener("change", () => choose(state.fit, state.view.name));

  at("budget").hidden = false;
  state.C = content.start;
  choose(state.fit, state.view.name);
})();
