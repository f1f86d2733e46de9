"use strict";
// The episode browser. Text of models and environments is only ever set as textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SETS = { train: "training, token by token", before: "the first evaluation", after: "the last evaluation" };
const MOST_LISTED = 500;
let current = null;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(id, options) {
  const select = byId(id);
  select.replaceChildren(...options.map(([value, text]) => {
    const option = element("option", text);
    option.value = value;
    return option;
  }));
}

// Red below the middle, green above; `strength` is in [-1, 1].
function diverging(strength) {
  const opacity = Math.min(1, Math.abs(strength)).toFixed(3);
  return strength < 0 ? `rgba(214, 69, 65, ${opacity})` : `rgba(39, 154, 96, ${opacity})`;
}

const versionColour = (version) => `hsl(${(version * 137.5) % 360} 70% 80%)`;

const COLOURS = {
  mask: { of: (t) => (t.mask ? "#bfe8cf" : "#e6e6e6"), legend: () => [["#bfe8cf", "sampled: trained on"], ["#e6e6e6", "not sampled"]] },
  advantage: { of: (t, scale) => diverging(t.advantage / scale), legend: (e, scale) => [[diverging(-1), (-scale).toFixed(2)], [diverging(0), "0"], [diverging(1), scale.toFixed(2)]] },
  ratio: { of: (t) => diverging(Math.log2(t.ratio)), legend: () => [[diverging(-1), "half or less"], [diverging(0), "as when sampled"], [diverging(1), "twice or more"]] },
  version: { of: (t, scale, e) => versionColour(e.adapter_version), legend: (e) => [[versionColour(e.adapter_version), `adapter version ${e.adapter_version}`]] },
};

// One object for each token; what is only known of sampled ones is null elsewhere.
function tokensOf(episode) {
  let sampled = 0;
  return episode.tokens.map((text, i) => {
    const mask = episode.loss_mask[i];
    const at = mask ? sampled++ : -1;
    return { text, mask, advantage: mask ? episode.advantages[at] : null, ratio: mask ? episode.ratios[at] : null };
  });
}

function showTokens(episode, pane) {
  const name = byId("colour").value;
  const scale = Math.max(...episode.advantages.map(Math.abs), 1e-9);
  const legend = element("p", undefined, "legend");
  for (const [colour, text] of COLOURS[name].legend(episode, scale)) {
    const entry = element("span", text);
    entry.style.background = colour;
    legend.append(entry);
  }
  const box = element("div", undefined, "tokens");
  box.append(element("span", episode.prompt, "prompt"));
  for (const token of tokensOf(episode)) {
    const span = element("span", token.text.replaceAll("\n", "↵\n"));
    if (token.mask || name === "mask") span.style.background = COLOURS[name].of(token, scale, episode);
    span.title = token.mask
      ? `advantage ${token.advantage}, ratio ${token.ratio}, adapter version ${episode.adapter_version}`
      : "not sampled";
    box.append(span);
  }
  pane.append(legend, box);
}

function showMessages(episode, pane) {
  for (const [role, text] of episode.messages) {
    if (!text || (episode.tokens && role !== "user")) continue;
    const box = element("div", text, `message ${role}`);
    box.dataset.role = { user: "environment", assistant: "policy" }[role] ?? role;
    pane.append(box);
  }
}

function showEpisode(episode) {
  current = episode;
  const pane = byId("episode");
  pane.replaceChildren();
  if (!episode) return;
  pane.append(element("strong", episode.task_id));
  pane.append(element("div", `iteration ${episode.iteration} · adapter version ${episode.adapter_version} · ${episode.outcome} · return ${episode.episode_return.toFixed(3)} · ${episode.skills.join(", ")}`));
  if (episode.tokens) showTokens(episode, pane);
  showMessages(episode, pane);
}

function matches(episode) {
  const outcome = byId("outcome").value;
  const wanted = byId("search").value.toLowerCase();
  return episode.run === Number(byId("run").value) && episode.set === byId("set").value
    && (!outcome || episode.outcome === outcome)
    && (!wanted || JSON.stringify(episode).toLowerCase().includes(wanted));
}

function showList() {
  const found = data.episodes.filter(matches);
  byId("count").textContent = `${found.length} episodes${found.length > MOST_LISTED ? `, the first ${MOST_LISTED} listed` : ""}`;
  byId("list").replaceChildren(...found.slice(0, MOST_LISTED).map((episode) => {
    const button = element("button", `${episode.iteration}: ${episode.task_id} → ${episode.outcome}`, episode.outcome);
    button.addEventListener("click", () => {
      for (const other of byId("list").querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      showEpisode(episode);
    });
    const item = element("li");
    item.append(button);
    return item;
  }));
  const first = byId("list").querySelector("button");
  if (first) first.click(); else showEpisode(null);
}

function showRun() {
  const own = data.episodes.filter((episode) => episode.run === Number(byId("run").value));
  fill("set", Object.entries(SETS).filter(([name]) => own.some((episode) => episode.set === name)));
  fill("outcome", [["", "any"], ...[...new Set(own.map((episode) => episode.outcome))].sort().map((name) => [name, name])]);
  showList();
}

fill("run", data.runs.map((name, index) => [index, name]));
byId("run").addEventListener("change", showRun);
for (const id of ["set", "outcome"]) byId(id).addEventListener("change", showList);
byId("search").addEventListener("input", showList);
byId("colour").addEventListener("change", () => showEpisode(current));
showRun();
