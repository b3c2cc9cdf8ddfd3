// The nodes: whether their agents report, and how full their GPUs and their memory are. Nodes whose
// agent does not report come first.

import { useAnswer } from '../answers';
import { paths } from '../api';
import { Age, Chip, Command, Meter, Soft, Time } from '../parts/basics';
import { Filter, filtered } from '../parts/filter';
import { Missing } from '../parts/missing';
import { memtape } from '../terminal';
import { useTitle } from '../title';
import type { Node, Nodes } from '../types';
import { isKnown, plural, whole } from '../units';

/** The nodes whose agents do not report. */
export const goneOf = (nodes: Node[]): Node[] => nodes.filter(node => !node.connected);

export function NodesView() {
  const { data, error } = useAnswer<Nodes>(paths.nodes);
  const nodes = data?.nodes ?? [];
  const gone = goneOf(nodes).length;
  useTitle(gone ? `${whole(gone)} of ${plural(nodes.length, 'node')} not connected` : 'Nodes');
  if (!data) return <Missing view="nodes" id="" error={error} />;
  if (nodes.length === 0) return <NoNodes />;
  const shown = filtered(nodes, node => [node.node, stateOf(node)]).sort(
    (a, b) => Number(a.connected) - Number(b.connected) || byName(a, b),
  );
  return (
    <>
      <h1>Nodes</h1>
      <p role="status" class={gone ? 'error' : 'soft'}>
        {`${plural(nodes.length, 'node')}, `}
        {gone ? `${whole(gone)} not connected` : 'all connected'}
      </p>
      <Filter name="Filter by node or state" shown={shown.length} total={nodes.length} />
      {shown.length === 0 ? <Soft>no node matches the filter</Soft> : null}
      <div class="cards">
        {shown.map(node => (
          <NodeCard key={node.node} of={node} />
        ))}
      </div>
    </>
  );
}

const stateOf = (node: Node): string => (node.connected ? 'connected' : 'disconnected');

const byName = (a: Node, b: Node): number =>
  a.node.localeCompare(b.node, undefined, { numeric: true });

const NoNodes = () => (
  <>
    <h1>Nodes</h1>
    <p>No agent has connected since the coordinator started. On every GPU node:</p>
    <Command line={memtape('agent')} />
  </>
);

function NodeCard({ of }: { of: Node }) {
  const { node, connected, version, last_report_wall_ns: last, gpus, host } = of;
  const used =
    isKnown(host.memory_total_bytes) && isKnown(host.memory_available_bytes)
      ? host.memory_total_bytes - host.memory_available_bytes
      : null;
  return (
    <article class="card">
      <h2>
        {node} <Chip name={stateOf(of)} />
      </h2>
      <p class="soft">
        agent {version || 'of unknown version'}, last report <Age at={last} />
        {connected ? null : <>, at <Time at={last} /></>}
      </p>
      {connected ? null : (
        <p>
          The figures are of that time. On the node, <code>memtape doctor</code> says what is wrong.
        </p>
      )}
      <Meter label="host memory" used={used} total={host.memory_total_bytes} />
      {isKnown(host.cgroup_limit_bytes) ? (
        <Meter
          label="cgroup of the agent"
          used={host.cgroup_bytes}
          total={host.cgroup_limit_bytes}
        />
      ) : null}
      {gpus.map(gpu => (
        <div key={gpu.uuid}>
          <Meter label={`GPU ${gpu.index}`} used={gpu.used_bytes} total={gpu.total_bytes} />
          <p class="soft small">{processes(gpu)}</p>
        </div>
      ))}
      {host.nvml_missing ? <Soft>No figures of GPUs: {host.nvml_missing}</Soft> : null}
    </article>
  );
}

function processes({ processes: all, ranks, uuid }: Node['gpus'][number]): string {
  if (!isKnown(all)) return uuid;
  const own = isKnown(ranks) ? `, ${plural(ranks, 'rank')}` : '';
  return `${plural(all, 'process', 'processes')}${own}; ${uuid}`;
}
