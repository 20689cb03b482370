// What whoever has the token may change. The token stays in its field: nothing stores it.

import { at, each, make, setText } from "./dom.js";

let paused = false;
const states = new Map();

function say(text, bad) {
  const said = at("said");
  said.className = bad ? "bad" : "";
  setText(said, text);
}

async function act(name, texts, button) {
  button.disabled = true;
  say("asking …", false);
  try {
    const answer = await fetch(`actions/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${at("token").value}` },
      body: JSON.stringify(texts),
    });
    const { said, error } = await answer.json();
    say(said ?? error, !answer.ok);
  } catch (problem) {
    say(`the dashboard does not answer (${problem.message}); nothing was changed that it did not say`, true);
  } finally {
    button.disabled = false;
  }
}

at("cap-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act("cap", { dataset: at("cap-dataset").value, tokens: at("cap-tokens").value }, event.submitter);
});

at("pause").addEventListener("click", (event) => act(paused ? "resume" : "pause", {}, event.currentTarget));

const isDrained = () => states.get(at("server").value) === "draining";

at("drain").addEventListener("click", (event) =>
  act(isDrained() ? "use" : "drain", { server: at("server").value }, event.currentTarget),
);
at("server").addEventListener("change", nameDrain);

function nameDrain() {
  setText(at("drain"), isDrained() ? "Use the server again" : "Drain the server");
}

function options(id, values) {
  each(at(id), values, () => make("option"), (option, value) => {
    if (option.value !== value) option.value = value;
    setText(option, value);
  });
}

export function offer(canAct, status) {
  at("read-only").hidden = canAct;
  at("act").hidden = !canAct;
  if (!status) return;
  paused = status.suspended;
  setText(at("pause"), paused ? "Let the run go on" : "Pause the run");
  options("cap-dataset", status.datasets.map(({ name }) => name));
  states.clear();
  status.servers.forEach(({ url, state }) => states.set(url, state));
  options("server", [...states.keys()]);
  nameDrain();
}
