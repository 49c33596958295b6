// Requests to the service with its token, and the stream of events, which begins anew after an interruption.
// EventSource cannot send the token as a header, so the frames are read from a fetch.

const TOKEN = "lmr-token";
const SILENCE = 10000; // milliseconds without a frame, after which the connection counts as lost
const PAUSES = [500, 1000, 2000, 4000]; // before the next try to connect

export class NeedsToken extends Error {}
export class Refusal extends Error {}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const stream = path.match(/^\/v1\/streams\/([^/:?]+)/)?.[1]; // by which a cluster finds the replica that serves it
  const headers = {
    ...options.headers,
    ...(stream ? { "X-Lmr-Stream": stream } : {}),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) throw new NeedsToken();
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Refusal(body.error?.message ?? `The service answered with code ${answer.status}.`);
  }
  return answer;
}

export const askJson = async (path, options) => (await ask(path, options)).json();
export const streamPath = (name) => `/v1/streams/${encodeURIComponent(name)}`;

// Calls onFrame for every frame, onLost when the connection is lost and onToken when a token is needed; restart()
// connects at once, with a new token for example.
export function follow({ onFrame, onLost, onToken }) {
  let failures = 0;
  let current = null;
  let wake = null;

  async function listen() {
    current = new AbortController();
    let timer = setTimeout(() => current.abort(), SILENCE);
    try {
      const answer = await ask("/v1/events", { signal: current.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => current.abort(), SILENCE);
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) readBlock(block);
      }
    } finally {
      clearTimeout(timer);
      current.abort();
    }
  }

  function readBlock(block) {
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("data: ")) data.push(line.slice(6));
    }
    if (!data.length) return;
    failures = 0;
    onFrame(JSON.parse(data.join("\n")));
  }

  async function run() {
    for (;;) {
      try {
        await listen();
        onLost("The service closed the connection.");
      } catch (error) {
        if (error instanceof NeedsToken) onToken();
        else onLost(error instanceof Refusal ? error.message : "The service cannot be reached.");
      }
      const pause = PAUSES[Math.min(failures++, PAUSES.length - 1)];
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause);
      });
    }
  }

  run();
  return {
    restart() {
      current?.abort();
      wake?.();
    },
  };
}
