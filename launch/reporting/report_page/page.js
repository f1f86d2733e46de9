"use strict";
// The episode browser. Text of models and environments is only ever set as textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SETS = { train: "training, token by token", after: "the last evaluation", before: "the first evaluation" };
const MOST_LISTED = 500;
const NUM_EXAMPLES = 3;
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

const versionColour = (version) => `hsl(${(version * 137.5) % 360} 70% 50% / 0.35)`;

const COLOURS = {
  mask: { of: (t) => `var(--${t.mask ? "sampled" : "given"})`, legend: () => [["var(--sampled)", "sampled: trained on"], ["var(--given)", "not sampled"]] },
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
  // Tokens tell all but what the environment said last.
  for (const [role, text] of episode.tokens ? episode.messages.slice(-1) : episode.messages) {
    if (!text || (episode.tokens && role !== "user")) continue;
    const box = element("div", text, `message ${role}`);
    box.dataset.role = { user: "environment", assistant: "policy" }[role] ?? role;
    pane.append(box);
  }
}

const isSolved = (episode) => episode.outcome === "success";

// The line of the prompt that asks, as far as lines tell by their looks.
function questionOf(episode) {
  const prompt = episode.messages.find(([role]) => role === "user")?.[1] ?? "";
  const lines = prompt.split("\n").filter((line) => line.trim());
  const labelled = prompt.match(/^(?:Task|Problem|Question): *(\S.*)/m)?.[1];
  return labelled ?? lines.find((line) => /[.?!=]\s*$/.test(line)) ?? lines[0] ?? episode.task_id;
}

const answerOf = (episode) => episode.messages.findLast(([role]) => role === "assistant")?.[1] || "(nothing)";

function showQuestion(episode, tag = "span") {
  const line = element(tag);
  line.append(element("b", isSolved(episode) ? "✓" : "✗", isSolved(episode) ? "solved" : "failed"), ` ${questionOf(episode)}`);
  return line;
}

const tell = (episode) => `${episode.outcome.replaceAll("_", " ")} · return ${episode.episode_return.toFixed(2)}`;

// As the curves count: training's first episodes are of iteration 1, which they led to.
const iterationOf = (episode) => `iteration ${episode.iteration + (episode.set === "train" ? 1 : 0)}`;

function showEpisode(episode) {
  current = episode;
  const pane = byId("episode");
  pane.replaceChildren();
  if (!episode) return;
  const facts = [tell(episode), iterationOf(episode), `adapter version ${episode.adapter_version}`, episode.skills.join(", "), `task ${episode.task_id}`];
  pane.append(showQuestion(episode, "strong"), element("div", facts.filter(Boolean).join(" · "), "note"));
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
  for (const node of document.querySelectorAll(".of-training")) node.hidden = byId("set").value !== "train";
  byId("count").textContent = `${found.length} episode${found.length === 1 ? "" : "s"}${found.length > MOST_LISTED ? `, the first ${MOST_LISTED} listed` : ""}`;
  byId("list").replaceChildren(...found.slice(0, MOST_LISTED).map((episode) => {
    const button = element("button");
    button.append(showQuestion(episode), element("small", `${tell(episode)} · ${iterationOf(episode)}`));
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

const firstOfEach = (episodes, name) => [...new Map([...episodes].reverse().map((episode) => [name(episode), episode])).values()].reverse();

// Of each skill the first, then the others, no task twice.
function choose(episodes) {
  const tasks = firstOfEach(episodes, (episode) => episode.task_id);
  return [...new Set([...firstOfEach(tasks, (episode) => episode.skills.join()), ...tasks])].slice(0, NUM_EXAMPLES);
}

function showExamples(own) {
  const set = ["after", "before", "train"].find((name) => own.some((episode) => episode.set === name));
  const shown = own.filter((episode) => episode.set === set);
  byId("examples").replaceChildren(...[true, false].map((wanted) => {
    const column = element("div");
    const chosen = choose(shown.filter((episode) => isSolved(episode) === wanted));
    column.append(element("h3", chosen.length ? (wanted ? "Solved" : "Failed") : (wanted ? "None solved" : "None failed")));
    for (const episode of chosen) {
      const card = element("button", undefined, "card");
      card.append(showQuestion(episode), element("code", answerOf(episode)), element("small", tell(episode)));
      card.addEventListener("click", () => {
        byId("set").value = set;
        byId("outcome").value = byId("search").value = "";
        showList();
        const listed = byId("list").querySelectorAll("button")[data.episodes.filter(matches).indexOf(episode)];
        if (listed) listed.click(); else showEpisode(episode);
        listed?.scrollIntoView();
        byId("panes").scrollIntoView();
      });
      column.append(card);
    }
    return column;
  }));
  document.querySelector(".of-episodes").hidden = !own.length;
  byId("examples-of").textContent = data.runs.length > 1 ? `${SETS[set]} of ${data.runs[byId("run").value]}` : SETS[set];
}

function showRun() {
  const own = data.episodes.filter((episode) => episode.run === Number(byId("run").value));
  fill("set", Object.entries(SETS).filter(([name]) => own.some((episode) => episode.set === name)));
  fill("outcome", [["", "any"], ...[...new Set(own.map((episode) => episode.outcome))].sort().map((name) => [name, name.replaceAll("_", " ")])]);
  showExamples(own);
  showList();
}

fill("run", data.runs.map((name, index) => [index, name]));
byId("run").addEventListener("change", showRun);
for (const id of ["set", "outcome"]) byId(id).addEventListener("change", showList);
byId("search").addEventListener("input", showList);
byId("colour").addEventListener("change", () => showEpisode(current));
showRun();
