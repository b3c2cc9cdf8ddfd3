// One incident: first the answers (which rank, which line, how long, how sure, restart, remedy),
// then the chart, the evidence, and all that belongs to it.
//
// Figures of the growth are of the last judged step. What a remedy saves and a restart gives back
// is said with the step of the capture that it was counted in.

import {
  capturesOf,
  collectivesOf,
  get,
  incidentsOf,
  mainDevice,
  one,
  origin,
  ranksOf,
  series,
} from '../api.js';
import {
  age,
  chip,
  facts,
  frameNode,
  link,
  list,
  make,
  section,
  size,
  table,
  time,
} from '../elements.js';
import { birthsChart } from '../charts/births.js';
import { memoryChart } from '../charts/memory.js';
import { isKnown, percent, plural, unitOf, whole } from '../units.js';
import {
  confidence,
  deviceOf,
  evidenceTitle,
  forecast,
  growth,
  lineOf,
  restart,
  saving,
  spaced,
  unknownLine,
} from '../words.js';
import { manifest } from './capture.js';
import { actionTable, deviceBytes, headline, rankIn, rankLink, timeline } from './parts.js';

const PEERS_DRAWN_MAX = 7;

export async function load(id) {
  const incident = await one('incidents', id);
  const { job, attempt, rank, device, capture_id: capture } = incident;
  const [actions, found, ranks, captures, data, incidents] = await Promise.all([
    get('actions').then(answer => answer.actions),
    capture ? one('captures', capture).catch(() => null) : null,
    ranksOf(job, attempt),
    capturesOf(job),
    series(job, attempt, rank, device),
    incidentsOf(job),
  ]);
  const peers = peersOf(ranks, rank);
  const others = peers.map(peer => series(job, attempt, peer.rank, mainDevice(peer)?.device ?? 0));
  const isOfAttempt = of => of.attempt === attempt;
  return {
    incident,
    capture: found,
    ranks,
    data,
    peers: await Promise.all(others),
    collectives: found && (await collectivesOf(found)),
    actions: actions.filter(of => of.incident_id === id),
    captures: captures.filter(isOfAttempt),
    incidents: incidents.filter(isOfAttempt),
  };
}

/** Some ranks of the same role, those with the nearest numbers. */
function peersOf(ranks, rank) {
  const own = rankIn(ranks, rank);
  const same = (ranks?.ranks ?? []).filter(row => row.rank !== rank && row.role === own?.role);
  return same
    .sort((a, b) => Math.abs(a.rank - rank) - Math.abs(b.rank - rank))
    .slice(0, PEERS_DRAWN_MAX);
}

export function draw(of) {
  const { incident, capture, ranks, data, peers, actions, captures, collectives } = of;
  const unit = unitOf(incident);
  const rank = rankIn(ranks, incident.rank);
  // What a capture showed is of its step; all other figures are the newest.
  const seen = incident.capture_step ? ` (at ${unit} ${whole(incident.capture_step)})` : '';
  const now = incident.last_step ? ` (at ${unit} ${whole(incident.last_step)})` : '';
  return [
    make(
      'p',
      { class: 'line-of-facts' },
      chip(incident.state),
      chip(incident.class),
      make('span', {}, 'job ', make('a', { href: link('job', incident.job) }, incident.job)),
      make('span', {}, 'opened ', age(incident.opened_wall_ns)),
      incident.stored ? null : make('span', { class: 'soft' }, 'not on disk yet'),
    ),
    ...headline(incident, rank),
    incident.closed_reason
      ? make('p', { class: 'banner' }, `Closed: ${incident.closed_reason}`)
      : null,
    answers(incident, rank, now),
    memoryChart({
      rank: incident.rank,
      data,
      peers,
      incident,
      captures,
      unit,
      capacity: deviceBytes(rank, incident.device),
      end: rank?.end ? rank.step : null,
    }),
    incident.stack.length
      ? section(
          incident.class === 'out_of_memory'
            ? 'Stack of the request that failed, innermost frame first'
            : 'Stack, innermost frame first',
          make(
            'pre',
            {},
            incident.stack.map(frame => `${lineOf(frame)}  ${frame.function}`).join('\n'),
          ),
        )
      : null,
    make(
      'div',
      { class: 'columns' },
      section(`${evidenceTitle(incident)}${seen}`, list(incident.evidence, 'none yet')),
      section(`Evidence against it${seen}`, list(incident.against, 'none')),
    ),
    section('Other possible classes', alternatives(incident)),
    section(`When the live blocks were allocated${seen}`, birthsChart(incident, unit)),
    section(`Lines that may be the cause${seen}`, suspects(incident, unit)),
    section('Growth', numbers(incident, unit)),
    section(
      'Timeline',
      timeline({ ...of, ranks: rank ? [rank] : [], incidents: [incident] }, unit),
    ),
    section(
      'Capture',
      ...(capture
        ? manifest(capture, collectives, unit)
        : [make('p', { class: 'soft' }, 'no capture belongs to this incident')]),
    ),
    section('Actions', actionTable(actions)),
    section('In a terminal', make('pre', {}, commands(incident).join('\n'))),
  ];
}

/** The six answers. */
function answers(incident, rank, from) {
  const left = forecast(incident, rank);
  const sure = confidence(incident);
  const again = restart(incident, from);
  const box = (name, text, detail, kind = '') =>
    make(
      'div',
      { class: `answer ${kind}` },
      make('dt', {}, name),
      make(
        'dd',
        {},
        make('div', { class: 'text' }, text),
        detail ? make('div', { class: 'soft' }, detail) : null,
      ),
    );
  const where =
    incident.scope === 'one_rank'
      ? `rank ${incident.rank}`
      : `${spaced(incident.scope)}, such as rank ${incident.rank}`;
  return make(
    'dl',
    { class: 'answers' },
    box('Which rank', make('a', { href: rankLink(incident.job, incident.rank) }, where), [
      [deviceOf(incident), rank?.node].filter(Boolean).join(', '),
      rank ? [' ', chip(rank.end ?? rank.state)] : null,
    ]),
    box('Out of memory in', left.text, left.detail),
    box(
      'Which line',
      incident.culprit ? frameNode(incident.culprit, 'culprit') : unknownLine(incident),
      incident.explained_ratio > 0
        ? `explains ${percent(incident.explained_ratio)} of the growth`
        : null,
      'wide',
    ),
    box('How sure', sure.text, sure.detail),
    box('A restart helps', again.text, again.detail),
    box('Try first', incident.advice || 'not known yet', saving(incident, from), 'wide long'),
  );
}

function numbers(incident, unit) {
  const now = value => `${value}, at ${unit} ${whole(incident.last_step)}`;
  const some = bytes => (bytes > 0 ? now(size(bytes)) : '–');
  return make(
    'div',
    { class: 'columns' },
    facts([
      ...growth(incident).map(([name, value]) => [name, now(value)]),
      ['what grows', spaced(incident.layer)],
      ['of it explained', some(incident.explained_bytes)],
      ['not explained', some(incident.unexplained_bytes)],
    ]),
    facts([
      ['began', `${unit} ${whole(incident.onset_step)}`],
      ['detected', `${unit} ${whole(incident.detected_step)}`],
      ['compared with', plural(incident.peers, 'peer')],
      ['grow alike', plural(incident.ranks, 'rank')],
      ['opened', time(incident.opened_wall_ns)],
      ['a restart', incident.restart.why || '–'],
    ]),
  );
}

/** What else it may be. */
export function alternatives({ alternatives: others }) {
  if (others.length === 0) return make('p', { class: 'soft' }, 'none: no diagnosis yet');
  return others.map(of =>
    make(
      'details',
      { id: `class-${of.class}`, open: of.standing !== 'ruled_out' },
      make('summary', {}, chip(of.standing), ` ${spaced(of.class)}`),
      make(
        'div',
        { class: 'columns' },
        make('div', {}, make('h3', {}, 'For it'), list(of.evidence, 'nothing')),
        make('div', {}, make('h3', {}, 'Against it'), list(of.against, 'nothing')),
      ),
    ),
  );
}

function suspects({ suspects: rows, culprit }, unit) {
  const isCulprit = row => culprit && lineOf(row.frame) === lineOf(culprit);
  return table(
    [
      { title: 'line', cell: row => frameNode(row.frame) },
      { title: 'grown', cell: row => size(row.grown_bytes, true), number: true },
      { title: 'on the peers', cell: row => size(row.peer_bytes, true), number: true },
      { title: 'blocks', cell: row => whole(row.blocks), number: true },
      {
        title: `allocated in distinct ${unit}s`,
        cell: row => whole(row.allocation_steps),
        number: true,
      },
    ],
    rows,
    {
      empty: 'none yet: the capture is not in',
      caption: 'Suspects',
      rowClass: row => (isCulprit(row) ? 'suspect' : ''),
    },
  );
}

function commands({ id, capture_id: capture, rank }) {
  const show = `memtape show ${id} --coordinator ${origin}`;
  if (!isKnown(capture)) return [show];
  return [
    show,
    `memtape export ${capture} --rank ${rank} --coordinator ${origin} -o rank${rank}.pickle`,
  ];
}
