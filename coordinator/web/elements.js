// Elements of the document: a chip, a number of bytes, a time, a table, a list.
//
// Every text goes in as text, never as markup: file names and command lines come from the training
// processes and are not trusted.

import { bytes, duration, isKnown } from './units.js';
import { lineOf, spaced, state } from './words.js';
import { route, setQuery } from './route.js';

const SVG = 'http://www.w3.org/2000/svg';

export const make = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && isKnown(value)) node.setAttribute(name, value);
  }
  for (const child of children.flat(2)) {
    if (isKnown(child) && child !== false) node.append(child);
  }
  return node;
}

export const link = (view, id) => `#/${view}/${encodeURIComponent(id)}`;

/** A state; an incident's with its class. */
export function chip(name, kind) {
  const [symbol, tone, word] = state(name);
  return make(
    'span',
    { class: `chip ${tone}` },
    make('span', { 'aria-hidden': 'true' }, symbol),
    ` ${kind ? spaced(kind) : word}`,
  );
}

export const size = (count, signed = false) =>
  make('span', { title: isKnown(count) ? `${count} bytes` : 'not measured' }, bytes(count, signed));

export function time(wallNs) {
  if (!wallNs) return '–';
  const date = new Date(wallNs / 1e6);
  return make(
    'time',
    { datetime: date.toISOString(), title: date.toISOString() },
    date.toLocaleString(),
  );
}

/** How long ago; `keepAges` keeps it right. */
export function age(wallNs) {
  if (!wallNs) return '–';
  const date = new Date(wallNs / 1e6);
  const node = make('time', {
    class: 'age',
    datetime: date.toISOString(),
    title: date.toISOString(),
  });
  node.textContent = ago(date);
  return node;
}

const ago = date => `${duration(Math.max(0, (Date.now() - date) / 1000))} ago`;

export function keepAges() {
  for (const node of document.querySelectorAll('time.age')) {
    const text = ago(new Date(node.dateTime));
    if (node.textContent !== text) node.textContent = text;
  }
}

export const frameNode = (frame, tone = '') =>
  make('code', { class: tone }, `${lineOf(frame)}  ${frame.function}`);

export const facts = pairs =>
  make(
    'dl',
    {},
    pairs.filter(Boolean).map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]),
  );

export function list(sentences, empty) {
  if (!sentences?.length) return make('p', { class: 'soft' }, empty);
  return make(
    'ul',
    {},
    sentences.map(sentence => make('li', {}, sentence)),
  );
}

/** A part of the view under a heading. */
export const section = (title, ...children) => make('section', {}, make('h2', {}, title), children);

/**
 * A table; on a narrow screen each row is a card. Columns are `{ title, cell(row), number,
 * sort(row) }`; a table with a `name` can be sorted, and keeps how in the address bar.
 */
export function table(columns, rows, options = {}) {
  const { name = '', rowClass = () => '', empty = 'none yet', caption = '' } = options;
  if (rows.length === 0) return make('p', { class: 'soft' }, empty);
  const [sortBy, order] = (route().query.get(name) ?? '').split('.');
  const sorter = name && columns.find(column => column.title === sortBy && column.sort);
  if (sorter) rows = [...rows].sort(comparing(sorter.sort, order === 'down'));
  const head = columns.map(column => heading(column, name, column === sorter ? order : null));
  // Roles are said: as cards the rows are no table to a browser.
  const cell = (column, row) => {
    const value = column.cell(row);
    const kind = `${column.number ? 'number' : ''} ${value === '–' ? 'nothing' : ''}`.trim();
    return make(
      'td',
      { role: 'cell', 'data-title': column.title, class: kind },
      make('div', {}, value),
    );
  };
  return make(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption || 'table' },
    make(
      'table',
      { role: 'table' },
      make('thead', { role: 'rowgroup' }, make('tr', { role: 'row' }, head)),
      make(
        'tbody',
        { role: 'rowgroup' },
        rows.map(row =>
          make(
            'tr',
            { role: 'row', class: rowClass(row) },
            columns.map(column => cell(column, row)),
          ),
        ),
      ),
    ),
  );
}

function comparing(key, isDown) {
  return (a, b) => {
    const [x, y] = [key(a), key(b)];
    return (x < y ? -1 : x > y ? 1 : 0) * (isDown ? -1 : 1);
  };
}

function heading({ title, number, sort }, name, order) {
  const arrow = { down: ' ↓', up: ' ↑' }[order] ?? '';
  const turn = () => setQuery(name, `${title}.${order === 'down' ? 'up' : 'down'}`);
  const words = { down: 'descending', up: 'ascending' };
  return make(
    'th',
    {
      role: 'columnheader',
      scope: 'col',
      class: number ? 'number' : '',
      'aria-sort': words[order],
    },
    name && sort
      ? make('button', { type: 'button', id: `${name}-${title}`, onclick: turn }, title + arrow)
      : title,
  );
}

/** A bar that is filled to a share, with its words. */
export function meter(label, used, total) {
  if (!isKnown(used) && !isKnown(total)) {
    return make(
      'div',
      { class: 'metered' },
      make('span', {}, label),
      make('span', { class: 'soft' }, 'unknown'),
    );
  }
  const share = isKnown(used) && total > 0 ? Math.min(1, used / total) : 0;
  const text = `${bytes(used)} of ${isKnown(total) && total > 0 ? bytes(total) : 'unknown'}`;
  const bar = make('meter', {
    min: 0,
    max: 1,
    high: 0.9,
    value: share,
    'aria-label': `${label}: ${text}`,
  });
  return make(
    'div',
    { class: 'metered' },
    make('span', {}, label),
    bar,
    make('span', { class: 'soft' }, text),
  );
}
