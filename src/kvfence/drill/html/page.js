"use strict";
(() => {
  const PAUSE = 600;
  const SIGNS = { n: "\u00b7", x: "\u00d7", u: "?", o: "#" };
  const OWNERS = { n: "not written", x: "poison", u: "of a tenant not known", o: "another tenant" };
  const STATES = { f: "free", e: "leased", d: "landing", l: "live", q: "quarantined" };

  const inWords = (code) =>
    [OWNERS[code[0]] || "tenant " + code[0], STATES[code[1]], code[2] && "read for another tenant"].filter(Boolean).join(", ");

  function paint(codes, runs) {
    for (let at = 0; at < runs.length; at += 3) {
      for (let place = runs[at]; place < runs[at] + runs[at + 1]; place++) codes[place] = runs[at + 2];
    }
  }

  function side(element, data) {
    const grids = [...element.querySelectorAll(".grid")].map((grid) => {
      const pages = [];
      for (const line of grid.children) {
        const first = Number(line.firstElementChild.textContent);
        for (let at = 1; at < line.children.length; at++) pages.push([first + at - 1, line.children[at]]);
      }
      return { grid, pages, title: grid.parentElement.querySelector("h5").textContent };
    });
    const said = element.querySelector(".moment");
    function show(time) {
      const codes = [];
      let last = -1;
      paint(codes, data.first);
      while (last + 1 < data.frames.length && data.frames[last + 1][0] <= time) paint(codes, data.frames[++last][1]);
      let place = 0;
      for (const { grid, pages, title } of grids) {
        const words = [];
        for (const [page, cell] of pages) {
          const code = codes[place++];
          const known = inWords(code);
          if (words.length && words[words.length - 1][1] === known) words[words.length - 1][2] = page;
          else words.push([page, known, page]);
          cell.className = code.split("").join(" ");
          cell.textContent = (SIGNS[code[0]] || code[0]) + (code[2] ? "!" : "");
          cell.title = page + ": " + known;
        }
        const runs = words.map(([from, known, to]) => (from === to ? from : from + "\u2013" + to) + " " + known);
        grid.setAttribute("aria-label", title + ": " + runs.join("; "));
      }
      if (data.frames.length) {
        said.textContent = last < 0 ? "Nothing yet." : (data.frames[last][0] / 1000).toFixed(3) + " s: " + data.said[last] + ".";
      }
    }
    return { show, times: data.frames.map((frame) => frame[0]) };
  }

  function start(details) {
    const data = JSON.parse(details.querySelector("script[type='application/json']").textContent);
    const elements = details.querySelectorAll(".side");
    const sides = data.sides.map((one, at) => side(elements[at], one));
    const times = [...new Set(sides.flatMap((one) => one.times))].sort((one, other) => one - other);
    const player = details.querySelector(".player");
    if (times.length < 2) return;
    times.unshift(0);
    const slider = player.querySelector("input");
    const output = player.querySelector("output");
    const button = player.querySelector("[data-do='play']");
    let timer = 0;
    function go(to) {
      const at = Math.max(0, Math.min(times.length - 1, to));
      slider.value = at;
      const words = (times[at] / 1000).toFixed(3) + " s, moment " + at + " of " + (times.length - 1);
      slider.setAttribute("aria-valuetext", words);
      output.textContent = words + (times[at] === data.leak ? ": leak" : "");
      for (const one of sides) one.show(times[at]);
    }
    function stop() {
      clearInterval(timer);
      timer = 0;
      button.textContent = "Play";
      button.setAttribute("aria-label", "Play");
    }
    function play() {
      if (timer) return stop();
      if (Number(slider.value) === times.length - 1) go(0);
      button.textContent = "Pause";
      button.setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        go(Number(slider.value) + 1);
        if (Number(slider.value) === times.length - 1) stop();
      }, PAUSE);
    }
    const leak = () => data.leak !== null && (stop(), go(times.indexOf(data.leak)));
    const acts = {
      play, leak,
      first: () => (stop(), go(0)),
      back: () => (stop(), go(Number(slider.value) - 1)),
      next: () => (stop(), go(Number(slider.value) + 1)),
    };
    slider.max = times.length - 1;
    slider.addEventListener("input", () => (stop(), go(Number(slider.value))));
    player.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (pressed) acts[pressed.dataset.do]();
    });
    player.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const onButton = event.target.tagName === "BUTTON";
      const act = { l: leak, L: leak, " ": onButton ? null : play }[event.key]
        || (onButton && { ArrowLeft: acts.back, ArrowRight: acts.next, Home: acts.first, End: () => (stop(), go(times.length - 1)) }[event.key]);
      if (act) {
        event.preventDefault();
        act();
      }
    });
    details.addEventListener("toggle", () => details.open || stop());
    player.hidden = false;
    go(data.leak === null ? times.length - 1 : times.indexOf(data.leak));
  }

  for (const details of document.querySelectorAll("details")) {
    let started = false;
    const begin = () => {
      if (details.open && !started) {
        started = true;
        start(details);
      }
    };
    details.addEventListener("toggle", begin);
    begin();
  }
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
