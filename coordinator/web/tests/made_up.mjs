// Serves the page with made-up answers (`answers.mjs`).
//
//     node tests/made_up.mjs [PORT]
//
// Prints the address. Tests change answers while the page is open, refuse a browser that is not
// signed in, and count requests.

import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';

import { answer } from './answers.mjs';
import { page } from './bundle.mjs';
import { entry } from './incidents.mjs';
import { ago } from './ranks.mjs';

const TYPES = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };
// As the coordinator says it.
const POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const event = data => `data: ${JSON.stringify(data)}\n\n`;

export class MadeUp {
  /** Paths below /api/v1 that were asked for, in order. */
  requests = [];
  /** The same with what stands behind the question mark. */
  asked = [];
  /** Requests about threads of incidents, in order. */
  posted = [];
  /** Changes an answer before it is given: `(path, answer) => answer`. */
  change = (_, found) => found;
  /** Token that a browser must have signed in with; empty where none is needed. */
  token = '';
  /** Whether the stream of changes is about all jobs; then pages ask when they are told. */
  isWhole = false;
  #streams = new Set();
  #files;
  #server;
  #port = 0;

  static async start(port = 0) {
    const made = new MadeUp();
    made.#files = await page();
    made.#port = port;
    await made.listen();
    return made;
  }

  get address() {
    return `http://127.0.0.1:${this.#port}`;
  }

  get files() {
    return this.#files;
  }

  /** Listens on the loopback, at the same port as before. */
  async listen() {
    this.#server = createServer((request, response) => this.#serve(request, response));
    await new Promise((resolve, reject) =>
      this.#server.once('error', reject).listen(this.#port, '127.0.0.1', resolve),
    );
    this.#port = this.#server.address().port;
  }

  /** Ends all connections. */
  async close() {
    const closed = new Promise(resolve => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  async #serve(request, response) {
    const { pathname, searchParams } = new URL(request.url, this.address);
    const say = (status, type, text, headers = {}) =>
      response.writeHead(status, { 'content-type': type, 'content-security-policy': POLICY, ...headers }).end(text);
    const sayJson = (status, value, headers) => say(status, 'application/json', JSON.stringify(value), headers);
    if (!pathname.startsWith('/api/v1/')) {
      const name = pathname === '/' ? 'index.html' : pathname.slice(1);
      const text = this.#files[name];
      return say(text ? 200 : 404, TYPES[name.split('.').at(-1)] ?? 'text/plain', text ?? 'there is no such page');
    }
    const path = pathname.slice('/api/v1/'.length);
    this.requests.push(path);
    this.asked.push(`${path}?${searchParams}`);
    if (request.method === 'POST') return this.#post(request, path, sayJson);
    if (this.token && request.headers.cookie !== `session=${this.token}`) {
      return sayJson(401, { error: 'sign in first' });
    }
    if (path === 'changes') return this.#stream(response);
    const found = this.change(path, answer(path, searchParams));
    return sayJson(found ? 200 : 404, found ?? { error: 'there is no such thing' });
  }

  #stream(response) {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(event({ is_whole: this.isWhole, is_all: true, jobs: [] }));
    this.#streams.add(response);
    response.on('close', () => this.#streams.delete(response));
  }

  /** Streams of changes that are open. */
  get streams() {
    return this.#streams.size;
  }

  /** Tells all pages which jobs have changed. */
  tell(...jobs) {
    for (const stream of this.#streams) stream.write(event({ is_whole: this.isWhole, is_all: false, jobs }));
  }

  async #post(request, path, sayJson) {
    let text = '';
    for await (const data of request) text += data;
    const body = JSON.parse(text);
    if (path === 'session') {
      return body.token === this.token
        ? sayJson(200, {}, { 'set-cookie': `session=${this.token}; HttpOnly; SameSite=Strict` })
        : sayJson(401, { error: 'this token is not known' });
    }
    const [, id] = /^incidents\/([^/]+)\/thread$/.exec(path) ?? [];
    if (id) return this.#thread(id, body, sayJson);
    return path.endsWith('/captures') ? sayJson(200, { id: 'cap-later' }) : sayJson(404, { error: 'there is no such thing' });
  }

  /** A request about the thread of an incident: a note is kept, and all else is answered. */
  #thread(id, request, sayJson) {
    this.posted.push(request);
    const found = this.change(`incidents/${id}`, answer(`incidents/${id}`));
    if (!found) return sayJson(404, { error: 'there is no such thing' });
    if (!found.thread.may_change) return sayJson(403, { error: 'piet lacks the role operator of that job: ask an admin for it' });
    const { note, acknowledge, assignee } = request;
    if (note?.trim() === '') return sayJson(400, { error: 'the note is empty: write a text' });
    const entries = [...found.thread.entries];
    const of = { ...found.thread, entries };
    if (note) entries.push(entry(0, 'piet', 'noted', { text: note }));
    if (acknowledge !== undefined) of.acknowledged = acknowledge ? { who: 'piet', wall_ns: ago(0) } : null;
    if (assignee !== undefined) of.assignee = assignee;
    const { silence_until_wall_ns: end = null, silence_until_step: step = null } = request;
    if (end ?? step) of.silence = { holds: true, until_wall_ns: end, until_step: step, who: 'piet', since_wall_ns: ago(0) };
    if (request.end_silence) of.silence = null;
    const before = this.change;
    this.change = (at, answer) => {
      const changed = before(at, answer);
      return at === `incidents/${id}` ? { ...changed, thread: of } : changed;
    };
    return sayJson(200, { ...found, thread: of });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  console.log((await MadeUp.start(Number(process.argv[2] ?? 0))).address);
}
