// The page's controls. explorer.py makes every number shown; the only formula here is
// M = floor(C / (B_p n)), of several batches where an update samples several (row.batches).
//
// content, from explorer.py:
//   start    the budget to begin with
//   colours  {light, dark}: n -> colour
//   fits     [{metric, mode, unit, level, views, cells, layouts}]; the last two only with charts
//     views    [{name, B_p, B_ps, rows, frontier, law}]: a frontier, of one B_p or the best of all
//       rows     by rising budget: an answer {C, n, B_p, M, y, low, high, ...} or a reason {C, why}
//     cells    [{B_p, trace}]; traces and layouts are plotly's
(() => {
  "use strict";

  const content = JSON.parse(document.getElementById("data").textContent);
  const plotly = window.Plotly;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // What is chosen. row: the answer nearest to the budget C, null where C is outside.
  const state = { fit: content.fits[0], view: content.fits[0].views[0], row: null, C: 0 };

  const at = (id) => document.getElementById(id);
  const whole = (x) => x.toLocaleString("en-US", { maximumFractionDigits: 3 });
  const last = (items) => items[items.length - 1];

  // What the choice of a metric calls a fit; its unit only where fits differ in it.
  function metricName(fit) {
    return fit.metric + (fit.unit === content.fits[0].unit ? "" : ` in ${fit.unit}`);
  }

  // Choices: metric, fit, B_p and budget.

  function offer(select, names, selected) {
    const choices = [...new Set(names)];
    select.replaceChildren(
      ...choices.map((name) => new Option(name, name, false, name === selected)),
    );
    select.value = selected;
    select.disabled = choices.length < 2;
  }

  function offerAll() {
    const { fit, view } = state;
    const ofMetric = content.fits.filter((other) => metricName(other) === metricName(fit));
    offer(at("metric"), content.fits.map(metricName), metricName(fit));
    offer(at("mode"), ofMetric.map((other) => other.mode), fit.mode);
    offer(at("B_p"), fit.views.map((other) => other.name), view.name);

    const lowest = view.rows[0].C;
    const highest = last(view.rows).C;
    at("slider").max = view.rows.length - 1;
    at("exact").min = lowest;
    at("exact").max = highest;
    at("hint").textContent =
      `From ${whole(lowest)} to ${whole(highest)} ${fit.unit}: ` +
      "the smallest measured budget to 4 times the largest.";

    for (const element of document.querySelectorAll(".unit")) element.textContent = fit.unit;
    at("out-metric").textContent = fit.metric;
  }

  // Show a view of a fit, at the budget nearest to the present one.
  function choose(fit, viewName) {
    state.fit = fit;
    state.view = fit.views.find((view) => view.name === viewName) || fit.views[0];
    offerAll();

    const rows = state.view.rows;
    setBudget(Math.min(Math.max(state.C, rows[0].C), last(rows).C));
    drawCharts();
  }

  // The row whose budget is nearest, as a ratio.
  function nearest(C) {
    const distance = (row) => Math.max(row.C / C, C / row.C);
    return state.view.rows.reduce((best, row) => (distance(row) < distance(best) ? row : best));
  }

  // typing: the field of the exact budget is being written, and is left as it is.
  function setBudget(C, typing) {
    const rows = state.view.rows;
    const lowest = rows[0].C;
    const highest = last(rows).C;
    const outside = !(C >= lowest && C <= highest); // NaN, of an empty field, is outside too
    at("exact").setAttribute("aria-invalid", String(outside));
    if (outside) {
      state.row = null;
      moveMarker();
      const range = `${whole(lowest)} to ${whole(highest)} ${state.fit.unit}`;
      fill(null, `Give a budget from ${range}: no measurement supports others.`);
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

  // The answer.

  // refusal: what is said where there is no row.
  function fill(row, refusal) {
    const answered = row !== null && row.why === undefined;
    const M = answered && row.M !== undefined ? updates(row) : null;

    at("out-n").textContent = answered ? whole(row.n) : "–";
    at("out-B_p").textContent = answered ? whole(row.B_p) : "–";
    at("out-M").textContent = M === null ? "–" : whole(M);
    at("out-reward").textContent = answered ? row.reward : "–";
    if (answered && row.interval) at("out-reward").append(small(row.interval));

    const status = at("out-status");
    status.textContent = answered ? words(row, M) : refusal || row.why;
    status.className = answered && !row.extrapolated ? "" : "warn";
    showProbabilities(answered ? row.probabilities : []);
    announce(answered ? spokenAnswer(row, M) : status.textContent);
  }

  function updates(row) {
    return Math.floor(state.C / (row.B_p * row.n * (row.batches ?? 1)));
  }

  function small(text) {
    const element = document.createElement("small");
    element.textContent = ` ${text}`;
    return element;
  }

  function words(row, M) {
    const sentences = ["Within the measured budgets."];
    if (row.extrapolated) {
      sentences[0] = "Beyond the measured budgets: the reward is extrapolated.";
    }
    if (M === 0) sentences.push("This budget is too small for one update.");
    if (row.interval && state.fit.level) {
      sentences.push(`${state.fit.level} interval of the expected reward: ${row.interval}.`);
    }
    sentences.push(row.words);
    return sentences.join(" ");
  }

  function spokenAnswer(row, M) {
    const run = `C ${whole(state.C)}: n ${row.n}, B_p ${row.B_p}`;
    const M_text = M === null ? "unknown" : whole(M);
    const interval = row.interval ? `, ${row.interval}` : "";
    return `${run}, M ${M_text}, expected ${row.reward}${interval}. ${words(row, M)}`;
  }

  // A bar for P(best) of each n; probabilities: [n, text, share].
  function showProbabilities(probabilities) {
    const lines = probabilities.map(([n, text, share]) => {
      const name = document.createElement("span");
      name.textContent = `n = ${n}`;

      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.setProperty("--share", share);
      bar.style.setProperty("--colour", colourOf(n));

      const value = document.createElement("span");
      value.textContent = text;

      const line = document.createElement("div");
      line.append(name, bar, value);
      return line;
    });
    at("out-probabilities").replaceChildren(...lines);
  }

  // Announced to screen readers once the slider rests, not at every step.
  let announcement = 0;
  function announce(text) {
    clearTimeout(announcement);
    announcement = setTimeout(() => { at("spoken").textContent = text; }, 400);
  }

  // Charts: explorer.py makes the traces and layouts, the page their colours, light or dark.

  const colourOf = (n) => content.colours[dark.matches ? "dark" : "light"][n];
  const narrow = () => innerWidth < 600;

  // A colour of page.css, such as --ink.
  function token(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // A trace's meta names what it shows: an n, or a role.
  function painted(trace) {
    const { n, role } = trace.meta;
    const ink = token("--ink");
    let hue = ink;
    if (n !== undefined) hue = colourOf(n);
    else if (role === "law") hue = token("--law");

    const hoverlabel = { bgcolor: token("--card"), bordercolor: hue, font: { color: ink } };
    const copy = { ...trace, hoverlabel };
    if (trace.fill) {
      const opacity = n === undefined ? "2c" : "66";
      copy.fillcolor = hue + opacity;
      copy.line = { ...trace.line, color: "rgba(0,0,0,0)" };
      return copy;
    }
    if (trace.line) copy.line = { ...trace.line, color: hue };
    if (trace.marker) {
      // What has a role is hollow.
      const outline = { ...trace.marker.line, color: role ? ink : hue };
      copy.marker = { ...trace.marker, color: role ? token("--paper") : hue, line: outline };
    }
    if (trace.error_x) copy.error_x = { ...trace.error_x, color: ink };
    return copy;
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

  function paintedLayout(name) {
    const plan = state.fit.layouts[name];
    const ink = token("--ink");
    const line = token("--line");
    const clear = "rgba(0,0,0,0)";
    const colours = { gridcolor: line, linecolor: line };
    const axis = (settings) => ({ ...settings, ...colours, zeroline: false, fixedrange: false });

    // On a phone the labels of 2k and 5k would meet those of 1k and 10k.
    const isPowerOfTen = (text) => /^10*\D?$/.test(text);
    const ticktext = plan.xaxis.ticktext.map((text) => narrow() && !isPowerOfTen(text) ? "" : text);

    return {
      ...plan,
      xaxis: axis({ ...plan.xaxis, ticktext }),
      yaxis: axis(plan.yaxis),
      font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: clear,
      plot_bgcolor: clear,
      autosize: true,
      modebar: { bgcolor: clear, color: token("--soft"), activecolor: token("--accent") },
      uirevision: name,
    };
  }

  // What stays whatever the budget: where the data end, and the base policy's reward.
  function landmarks({ meta: { measured_to, base }, xaxis }) {
    const soft = token("--soft");
    const font = { color: soft, size: 10 };
    const beyond = {
      type: "rect",
      layer: "below",
      xref: "x",
      yref: "paper",
      x0: measured_to,
      x1: 10 ** xaxis.range[1],
      y0: 0,
      y1: 1,
      fillcolor: token("--line"),
      opacity: 0.35,
      line: { width: 0 },
      label: { text: narrow() ? "" : "not measured", textposition: "bottom left", font },
    };
    if (base === null) return [beyond];

    const start = {
      type: "line",
      layer: "below",
      xref: "paper",
      yref: "y",
      x0: 0,
      x1: 1,
      y0: base,
      y1: base,
      line: { color: soft, width: 1, dash: "dash" },
      label: {
        text: `base policy ${base.toFixed(3)}`,
        textposition: "end",
        yanchor: "bottom",
        font,
      },
    };
    return [beyond, start];
  }

  // Six pixels to each side, in the axis's own units (plotly's sizes in pixels fail on log axes).
  function around(axis, value) {
    return [-6, 6].map((pixels) => axis.p2d(axis.d2p(value) + pixels));
  }

  // The chosen budget: a line from bottom to top, the interval, and a point. Shapes, because they
  // move without redrawing the curves.
  function shapes(kind, axes) {
    const { row, C } = state;
    const accent = token("--accent");
    const drawn = landmarks(state.fit.layouts[kind]);
    if (row === null) return drawn;

    const upright = { type: "line", layer: "above", xref: "x", yref: "y", x0: C, x1: C };
    const dotted = { color: accent, width: 1.2, dash: "dot" };
    drawn.push({ ...upright, yref: "paper", y0: 0, y1: 1, line: dotted });
    if (row.why !== undefined) return drawn;

    if (kind === "reward" && row.low !== null && row.high !== null) {
      const bar = { color: accent, width: 5 };
      drawn.push({ ...upright, y0: row.low, y1: row.high, line: bar, opacity: 0.6 });
    }

    const [x0, x1] = around(axes.xaxis, C);
    const [y0, y1] = around(axes.yaxis, kind === "law" ? row.n : row.y);
    const circle = { type: "circle", layer: "above", xref: "x", yref: "y", x0, x1, y0, y1 };
    drawn.push({ ...circle, fillcolor: accent, line: { color: token("--paper"), width: 2 } });
    return drawn;
  }

  const charts = { reward: "chart-reward", law: "chart-n-star" };
  const drawable = () => Boolean(plotly && state.fit.layouts);

  function drawCharts() {
    document.documentElement.classList.toggle("live", drawable());
    if (!drawable()) return;

    const cells = state.fit.cells.filter((cell) => state.view.B_ps.includes(cell.B_p));
    const traces = {
      reward: [...cells.map((cell) => cell.trace), ...state.view.frontier],
      law: state.view.law,
    };
    const config = {
      responsive: true,
      displaylogo: false,
      displayModeBar: true,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    };
    for (const [kind, id] of Object.entries(charts)) {
      plotly.react(at(id), legended(traces[kind]), paintedLayout(kind), config);
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
      for (const [kind, id] of Object.entries(charts)) {
        plotly.relayout(at(id), { shapes: shapes(kind, at(id)._fullLayout) });
      }
    });
  }

  // What changes a choice.

  at("metric").addEventListener("change", (event) => {
    const ofMetric = content.fits.filter((fit) => metricName(fit) === event.target.value);
    const sameMode = ofMetric.find((fit) => fit.mode === state.fit.mode);
    choose(sameMode || ofMetric[0], state.view.name);
  });
  at("mode").addEventListener("change", (event) => {
    const ofMetric = content.fits.filter((fit) => metricName(fit) === metricName(state.fit));
    choose(ofMetric.find((fit) => fit.mode === event.target.value), state.view.name);
  });
  at("B_p").addEventListener("change", (event) => choose(state.fit, event.target.value));
  at("slider").addEventListener("input", (event) => {
    setBudget(state.view.rows[Number(event.target.value)].C);
  });
  at("exact").addEventListener("input", (event) => setBudget(event.target.valueAsNumber, true));
  window.addEventListener("resize", moveMarker);
  dark.addEventListener("change", () => choose(state.fit, state.view.name));

  // A link to what is folded opens it.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const fold = link && at(link.hash.slice(1))?.closest("details");
    if (fold) fold.open = true;
  });

  at("budget").hidden = false;
  state.C = content.start;
  choose(state.fit, state.view.name);
})();
