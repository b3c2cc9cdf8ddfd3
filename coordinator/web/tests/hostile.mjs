// Names of a hostile user, in every place where a name can stand: HTML, a change of the direction of
// text, 10,000 letters without a space, lines, emoji.

import { capture, collectives, kept, segments } from './captures.mjs';
import { answers, entry, incident, said, thread } from './incidents.mjs';
import { action, lines, node } from './jobs.mjs';
import { ago, rank } from './ranks.mjs';

export const HOSTILE = {
  html: `<img src=x onerror="document.hurt=1"><script>document.hurt=1</script></td></table><b id=hurt>"'&amp;`,
  turned: 'safe\u202egnp.exe\u2066\u200f',
  long: 'x'.repeat(10_000),
  lines: 'first\nsecond\r\nthird\u2028fourth\tfifth',
  emoji: '👩‍👩‍👧‍👦🏳️‍🌈 名前 اسم é\u0301\u0301\u0301',
};
const ALL = Object.values(HOSTILE).join(' ');

/** Also a path and a query to whoever forgets to escape it. */
export const HOSTILE_JOB = `../${HOSTILE.html}?a=b#c%2F ${HOSTILE.turned} ${HOSTILE.lines} ${HOSTILE.emoji}`;

const FRAME = { file: `/${HOSTILE.html}/${HOSTILE.long}.py`, line: 1, function: ALL };
const CAPTURE = capture(HOSTILE_JOB, {
  id: 'cap-hostile',
  trigger: HOSTILE.html,
  missing: [{ rank: 6, outcome: HOSTILE.html, detail: ALL }],
});
for (const part of CAPTURE.parts) Object.assign(part, { node: HOSTILE.long, detail: ALL });

const THREAD = thread({
  acknowledged: { who: ALL, wall_ns: ago(9) },
  silence: { holds: true, until_wall_ns: null, until_step: 9000, who: ALL, since_wall_ns: ago(9) },
  assignee: ALL,
  entries: [entry(9, ALL, 'assigned', { text: ALL }), entry(8, ALL, 'noted', { text: ALL }), entry(7, ALL, HOSTILE.html, { text: ALL })],
  notes_total: 1,
});

export const hostile = {
  incident: incident(HOSTILE_JOB, {
    id: 'inc-hostile',
    capture_id: 'cap-hostile',
    sentence: `${ALL} keeps memory`,
    answers: answers({
      rank: said('Which rank', 'rank 2', `device 0, ${HOSTILE.long}`),
      line: said('Which line', ALL, ALL),
      remedy: said('Try first', ALL, ''),
      growth: [said('growth', ALL, ALL)],
      evidence_title: HOSTILE.html,
    }),
    culprit: FRAME,
    stack: [FRAME, FRAME],
    evidence: [ALL, HOSTILE.html],
    against: [ALL],
    advice: ALL,
    thread: THREAD,
    restart: { helps: null, freed_bytes: null, lasts_steps: null, ends_after_steps: null, why: ALL },
    alternatives: [{ class: HOSTILE.html, standing: HOSTILE.html, evidence: [ALL], against: [] }],
    suspects: [{ frame: FRAME, stack: [FRAME], stacks: 1, grown_bytes: 1, peer_bytes: 0, blocks: 1, allocation_steps: 1 }],
  }),
  capture: CAPTURE,
  action: action({ job: HOSTILE_JOB, incident_id: 'inc-hostile', why: ALL, outcome: ALL, decision: ALL }),
  node: node(HOSTILE.long + HOSTILE.html, { version: ALL, connected: false }),
  rank: number =>
    rank(number, {
      node: HOSTILE.long,
      end: number === 2 ? 'killed' : null,
      end_detail: number === 2 ? ALL : '',
      limitations: [ALL],
      role: HOSTILE.html,
    }),
  lines: { ...lines(HOSTILE_JOB), missing: ALL, lines: lines(HOSTILE_JOB).lines.map(of => ({ ...of, frames: [FRAME] })) },
  collectives: {
    ...collectives,
    sentences: [ALL],
    groups: [{ ...collectives.groups[0], desc: ALL, sentence: ALL }],
    unknown: [{ why: ALL, ranks: [0] }],
  },
  segments(number) {
    const made = segments(CAPTURE, number);
    return { ...made, frames: made.frames.map(() => FRAME) };
  },
  kept(...range) {
    const made = kept(CAPTURE, ...range);
    return { ...made, frames: made.frames.map(() => FRAME), lines: made.lines.map(of => ({ ...of, frame: FRAME })) };
  },
};
