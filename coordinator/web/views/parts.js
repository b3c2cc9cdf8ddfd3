// Parts that several views show: an incident as a card, captures, decisions, a timeline.

import { mainDevice } from '../api.js';
import { age, chip, frameNode, link, make, table, time } from '../elements.js';
import { plural, whole } from '../units.js';
import {
  confidence,
  decision,
  endOf,
  events,
  forecast,
  growth,
  hasDied,
  hook,
  joined,
  outcome,
  trigger,
  unknownLine,
} from '../words.js';

const EVENTS_SHOWN_MAX = 50;

export const rankIn = (ranks, rank) => ranks?.ranks.find(row => row.rank === rank) ?? null;

export const deviceBytes = (rank, device) => {
  const found = rank?.devices.find(of => of.device === device) ?? (rank && mainDevice(rank));
  return found?.device_bytes || found?.ledger.device_bytes || null;
};

export const rankLink = (job, rank) => `${link('job', job)}?rank=${rank}`;

/** An incident in a list: what, where, how long, since when. */
export function incidentCard(incident, rank) {
  const isOpen = incident.state === 'open';
  const left = forecast(incident, rank);
  const fact = (name, value) => make('span', { class: 'fact' }, make('b', {}, `${name} `), value);
  const end = isOpen ? endOf(rank) : null;
  return make(
    'article',
    { class: `alert ${isOpen ? incident.urgency : 'closed'}` },
    make(
      'p',
      { class: 'sentence' },
      make('a', { href: link('incident', incident.id) }, end ?? incident.sentence),
    ),
    end ? make('p', {}, `Before its end: ${incident.sentence}`) : null,
    make(
      'p',
      { class: 'line-of-facts' },
      chip(incident.state),
      chip(incident.class),
      fact('job', make('a', { href: link('job', incident.job) }, incident.job)),
      fact(
        'rank',
        make('a', { href: rankLink(incident.job, incident.rank) }, String(incident.rank)),
      ),
      fact('line', incident.culprit ? frameNode(incident.culprit) : unknownLine(incident)),
      ...growth(incident).map(([name, value]) => fact(name, value)),
      isOpen && !end ? fact('out of memory in', left.text) : null,
      isOpen ? fact('sure', confidence(incident).text) : null,
      isOpen
        ? fact('opened', age(incident.opened_wall_ns))
        : fact('closed', age(incident.closed_wall_ns)),
    ),
    incident.closed_reason
      ? make('p', { class: 'soft' }, `Closed: ${incident.closed_reason}`)
      : null,
  );
}

/** The heading of an incident: once its rank has ended, that comes first. */
export function headline(incident, rank) {
  const isAboutItsEnd = incident.layer === 'process';
  const end = incident.state === 'open' && !isAboutItsEnd ? endOf(rank) : null;
  if (!end) return [make('h1', {}, incident.sentence)];
  return [
    make('h1', { class: hasDied(rank) ? 'bad' : '' }, end),
    make('p', {}, `Before its end: ${incident.sentence}`),
  ];
}

export function captureTable(captures) {
  return table(
    [
      { title: 'capture', cell: row => make('a', { href: link('capture', row.id) }, row.id) },
      { title: 'state', cell: row => chip(row.state) },
      { title: 'trigger', cell: row => trigger(row) },
      { title: 'step', cell: row => whole(row.step), number: true },
      { title: 'aligned', cell: row => `${row.aligned} of ${row.ranks}`, number: true },
      {
        title: 'missing',
        cell: row =>
          row.missing.map(part => `rank ${part.rank}: ${part.outcome}`).join(', ') || 'none',
      },
      { title: 'requested', cell: row => age(row.requested_wall_ns) },
    ],
    captures,
    { empty: 'no capture yet', caption: 'Captures' },
  );
}

export function actionTable(actions) {
  return table(
    [
      {
        title: 'when',
        cell: row => [
          time(row.wall_ns),
          row.times > 1
            ? make(
                'div',
                { class: 'soft' },
                `${plural(row.times, 'time')}, since `,
                time(row.first_wall_ns),
              )
            : null,
        ],
      },
      { title: 'decision', cell: row => decision(row) },
      { title: 'target', cell: row => hook(row.kind) },
      { title: 'outcome', cell: row => outcome(row) },
      {
        title: 'job or node',
        cell: row => (row.job ? make('a', { href: link('job', row.job) }, row.job) : row.node),
      },
      {
        title: 'incident',
        cell: row =>
          row.incident_id
            ? make('a', { href: link('incident', row.incident_id) }, row.incident_id)
            : '–',
      },
    ],
    joined(actions),
    { empty: 'no action was considered', caption: 'Decisions about jobs and nodes' },
  );
}

/** What happened, newest first. */
export function timeline(of, unit) {
  const found = events(of);
  if (found.length === 0) return make('p', { class: 'soft' }, 'nothing has happened yet');
  const rows = found
    .slice(0, EVENTS_SHOWN_MAX)
    .map(event =>
      make(
        'li',
        {},
        make(
          'span',
          { class: 'when' },
          time(event.wall_ns),
          event.step ? ` ${unit} ${whole(event.step)}` : '',
        ),
        make('span', { class: 'symbol', 'aria-hidden': 'true' }, event.symbol),
        make(
          'span',
          {},
          event.id ? make('a', { href: link(event.view, event.id) }, event.text) : event.text,
        ),
      ),
    );
  const more = found.length - rows.length;
  return make(
    'div',
    {},
    make('ol', { class: 'timeline' }, rows),
    more > 0 ? make('p', { class: 'soft' }, `${plural(more, 'earlier event')} not shown`) : null,
  );
}
