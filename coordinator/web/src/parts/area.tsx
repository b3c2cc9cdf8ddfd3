// Ranks × steps of a job: the heat map, which account it shows and against what, the rectangle that
// is looked at, and the part of the map that is shown.

import { useMemo } from 'preact/hooks';

import { ACCOUNTS, accountFor, calmIn, valueIn } from '../account';
import { address, arrange, look, rangeAs, rangeIn, stepsIn } from '../address';
import { useAnswer } from '../answers';
import { hasSteps, paths, report } from '../api';
import { gridOf, type Ground, type Happened } from '../charts/heat';
import { HeatMap } from '../charts/heat_map';
import type { Area, Capture, Incident, Ranks } from '../types';
import { rangeWords, whole } from '../units';
import { trigger } from '../words';
import { Section, Soft } from './basics';
import { NotHeld } from './missing';

const EVERY_MS = 5000;
const RANKS_ZOOMED_MIN = 3;

const GROUNDS: Record<Ground, string> = {
  peers: 'difference from the median rank',
  growth: 'growth since the left end',
  level: 'level',
};

interface AreaPartOf {
  ranks: Ranks;
  incidents: Incident[];
  captures: Capture[];
  selected: number | null;
  unit: string;
}

export function AreaPart({
  ranks: { job, attempt, ranks: listed },
  incidents,
  captures,
  selected,
  unit,
}: AreaPartOf) {
  const open = incidents.filter(of => of.state === 'open');
  const account = accountFor(...open, ...incidents);
  const ground = groundIn();
  const [steps, ranks] = [rangeIn('shown_steps'), rangeIn('shown_ranks')];
  const { data, error } = useAnswer<Area>(
    paths.area({ job, attempt, account, steps, ranks }),
    EVERY_MS,
  );
  const grid = useMemo(() => data && gridOf(data), [data]);
  const lane = useMemo(() => happened(incidents, captures), [incidents, captures]);
  return (
    <Section title={`Ranks × ${unit}s`}>
      <p class="pills">
        {report ? null : <Choice name="account" words="Show" value={account} options={ACCOUNTS} />}
        <Choice name="against" words="as" value={ground} options={GROUNDS} />
        {report ? null : <Zoom unit={unit} />}
      </p>
      {error && report ? <NotHeld /> : null}
      {error && !report ? <p class="error">{error.message}</p> : null}
      {data?.unknown ? <Soft>{data.unknown}</Soft> : null}
      {grid && data ? (
        <HeatMap
          grid={grid}
          ground={ground}
          incidents={open}
          happened={lane}
          selected={selected}
          ranks={rangeIn('ranks')}
          steps={stepsIn()}
          unit={unit}
          newest={Math.max(...listed.map(of => of.step))}
          account={ACCOUNTS[account]}
          calm={calmIn(data.unit)}
          words={valueIn(data.unit)}
          onRank={rank => hasSteps(rank) && look({ rank })}
          onArea={(ranks, steps) => {
            const isOne = ranks.from === ranks.to && hasSteps(ranks.from);
            const rank = isOne ? ranks.from : selected;
            look({ ranks: rangeAs(ranks), steps: rangeAs(steps), rank });
          }}
        />
      ) : data && !data.unknown ? (
        <Soft>{`no finished ${unit}s yet`}</Soft>
      ) : null}
      {data ? <Notes of={data} unit={unit} /> : null}
    </Section>
  );
}

function groundIn(): Ground {
  const chosen = address.value.query.get('against') ?? '';
  return Object.hasOwn(GROUNDS, chosen) ? (chosen as Ground) : 'peers';
}

interface ChoiceOf {
  name: string;
  words: string;
  value: string;
  options: Record<string, string>;
}

const Choice = ({ name, words, value, options }: ChoiceOf) => (
  <label>
    {`${words} `}
    <select value={value} onChange={event => arrange({ [name]: event.currentTarget.value })}>
      {Object.entries(options).map(([option, text]) => (
        <option value={option}>{text}</option>
      ))}
    </select>
  </label>
);

/** Shows only the rectangle that is looked at, or all ranks and steps again. */
function Zoom({ unit }: { unit: string }) {
  const [steps, ranks] = [stepsIn(), rangeIn('ranks')];
  const shown = rangeIn('shown_steps') ?? rangeIn('shown_ranks');
  // Fewer ranks have no median to differ from: the others stay in view.
  const most = ranks && ranks.to - ranks.from + 1 >= RANKS_ZOOMED_MIN ? ranks : null;
  const into = () => look({ shown_steps: rangeAs(steps), shown_ranks: rangeAs(most) });
  return (
    <>
      {steps ? (
        <button type="button" onClick={into}>
          {most ? 'Zoom into the rectangle' : `Zoom into these ${unit}s`}
        </button>
      ) : null}
      {shown ? (
        <button type="button" onClick={() => look({ shown_steps: null, shown_ranks: null })}>
          {`Show all ranks and ${unit}s`}
        </button>
      ) : null}
      {ranks ? (
        <button type="button" class="pill" onClick={() => look({ ranks: null, steps: null })}>
          {`${rangeWords('rank', ranks)} ✕`}
        </button>
      ) : null}
    </>
  );
}

/** What the map lacks. */
function Notes({ of, unit }: { of: Area; unit: string }) {
  const notes = [
    of.known_from_step !== null && of.source === 'readings'
      ? `no reading of this account before ${unit} ${whole(of.known_from_step)}: the coordinator ` +
        'keeps readings in memory, and loses them when it restarts'
      : '',
    of.is_cut ? `the oldest ${unit}s are left out: there are more than one answer reads` : '',
    of.steps_left_out ? `${whole(of.steps_left_out)} records of ${unit}s are not kept` : '',
  ].filter(Boolean);
  return notes.length ? <Soft>{notes.join('; ')}</Soft> : null;
}

/** What happened at which step. */
function happened(incidents: Incident[], captures: Capture[]): Happened[] {
  const found: Happened[] = [];
  for (const of of captures) {
    if (of.step)
      found.push({ step: of.step, symbol: '◎', tone: '--link', words: `capture, ${trigger(of)}` });
  }
  for (const of of incidents) {
    found.push({
      step: of.detected_step,
      symbol: of.layer === 'process' ? '✕' : '▲',
      tone: '--bad',
      words: of.sentence,
    });
  }
  return found;
}
