// The chart of one rank beside its peers: the levels of its device, or the account that grows, or
// that was chosen, with its own limit.

import { useMemo } from 'preact/hooks';

import { accountFor, TOGETHER } from '../account';
import { rangeIn } from '../address';
import { useAnswer, useAnswers } from '../answers';
import { isHere, paths, report, type SeriesOf } from '../api';
import { baselineIn, isBaseline } from '../baseline';
import { MemoryChart } from '../charts/memory';
import { deviceBytes, mainDevice, peersOf, rankIn } from '../ranks';
import type { Series, Capture, Incident, Ranks } from '../types';
import { standing, stateOf } from '../words';
import { NotHeld } from './missing';

const PEERS_DRAWN_MAX = 7;
const EVERY_MS = 5000;

interface RankChartOf {
  job: string;
  attempt: number;
  rank: number;
  /** The device; without one that which holds most. */
  device?: number | null;
  incident: Incident | null;
  /** The account that the chart is about; without one that of the incident. */
  account?: string;
  captures: Capture[];
  unit: string;
}

export function RankChart(of: RankChartOf) {
  const { job, attempt, incident, account = accountFor(incident), unit } = of;
  const near = paths.ranksNear(job, attempt, of.rank);
  // A report has the neighbours of one rank, and the list of all.
  const ranks = useAnswer<Ranks>(isHere(near) ? near : paths.ranks(job, attempt)).data;
  const rank = rankIn(ranks, of.rank);
  const steps = rangeIn('shown_steps');
  const main = (row: typeof rank) => (row && mainDevice(row)?.device) ?? 0;
  const wanted = (number: number, device: number): SeriesOf => ({
    job,
    attempt,
    rank: number,
    device,
    account: TOGETHER.includes(account) ? null : account,
    steps,
  });
  const peers = peersOf(ranks, of.rank, PEERS_DRAWN_MAX);
  const device = of.device ?? main(rank);
  const all = [wanted(of.rank, device), ...peers.map(peer => wanted(peer.rank, main(peer)))];
  const [own, ...others] = useAnswers<Series>(all.map(paths.series), EVERY_MS);
  // The same list as long as its series are the same: a chart is made again for another one.
  const series = others.map(answer => answer.data);
  const other = baselineIn();
  const isOther = other?.kind === 'run' && !report && !isBaseline(other, job, attempt);
  const beside = isOther
    ? { ...wanted(of.rank, device), job: other.job, attempt: other.attempt }
    : null;
  const baseline = useAnswer<Series>(beside && paths.series(beside), EVERY_MS).data;
  const kept = useMemo(() => series, series);
  const found = own.data?.account;
  if (own.error && report) return <NotHeld />;
  // A failure is no growth: nothing of it can be drawn but its step.
  const drawn = incident?.layer === 'process' ? null : incident;
  return (
    <MemoryChart
      rank={of.rank}
      data={own.data}
      account={account}
      steps={steps}
      peers={kept}
      baseline={baseline}
      unit={unit}
      incident={drawn}
      captures={of.captures}
      limit={
        found
          ? { bytes: found.limit_bytes, name: 'the limit' }
          : { bytes: deviceBytes(rank, device), name: 'the device' }
      }
      end={rank?.end ? rank.step : null}
      ended={rank ? stateOf(standing(rank))[2] : ''}
    />
  );
}
