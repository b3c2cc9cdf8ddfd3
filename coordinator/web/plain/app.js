// The plain page: the answers of the API as tables, for a program that was built without npm. In a
// report the answers stand in the file.
//
// Every text goes in as text, never as markup, and with its hidden characters written out.

const LISTS = ['incidents', 'jobs', 'captures', 'actions', 'nodes'];
const MISSING =
  'This is the plain page: the program was built without npm. Charts, comparisons and links need ' +
  'the other one; build the program where Node.js 20 with npm is, or use the wheel.';
const EVERY_MS = 5000;

const report = JSON.parse(document.getElementById('report')?.textContent ?? 'null');

// As in `src/visible.ts`: this page has no bundler, so a test compares both.
const HIDDEN =
  /[\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{3164}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{fffe}-\u{ffff}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
const visible = of =>
  typeof of === 'string' ? of.replace(HIDDEN, mark => `\\u{${mark.codePointAt(0).toString(16)}}`) : of;

function make(tag, ...children) {
  const node = document.createElement(tag);
  node.append(...children.map(visible));
  return node;
}

/** A value as text: lists of plain values in one line, all else as JSON. */
function text(value) {
  if (value === null || value === '') return '–';
  if (Array.isArray(value) && value.every(of => typeof of !== 'object')) return value.join(', ');
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

function table(rows) {
  if (rows.length === 0) return make('p', 'none');
  const names = [...new Set(rows.flatMap(row => Object.keys(row)))];
  const head = make('tr', ...names.map(name => make('th', name.replaceAll('_', ' '))));
  const body = rows.map(row => make('tr', ...names.map(name => make('td', text(row[name] ?? null)))));
  const scroll = make('div', make('table', make('thead', head), make('tbody', ...body)));
  scroll.className = 'scroll';
  return scroll;
}

/** An answer: a list of things as a table, one thing as a table of its fields. */
function part(name, answer) {
  const list = Object.values(answer).find(of => Array.isArray(of) && typeof of[0] === 'object');
  const isList = LISTS.includes(name.split('?')[0]) || name.endsWith('/ranks');
  const rows = isList ? (list ?? []) : Object.entries(answer).map(([field, value]) => ({ field, value }));
  return [make('h2', name), table(rows)];
}

async function answerOf(name) {
  const response = await fetch(`api/v1/${name}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function show(parts) {
  const main = make('main', make('h1', 'Memtape'), make('p', MISSING), ...parts.flat());
  document.getElementById('page').replaceChildren(main);
}

async function refresh() {
  const parts = LISTS.map(name =>
    answerOf(name).then(
      answer => part(name, answer),
      error => [make('h2', name), make('p', String(error.message))],
    ),
  );
  show(await Promise.all(parts));
}

if (report) {
  const head = report.sentences.map(sentence => make('p', make('strong', sentence)));
  const answers = Object.entries(report.answers).map(([name, answer]) => part(name, answer));
  show([head, make('p', `Memtape report, made by ${report.made}.`), ...answers]);
} else {
  refresh();
  setInterval(() => document.hidden || refresh(), EVERY_MS);
}
