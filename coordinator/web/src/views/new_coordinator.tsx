// What is shown while no job has been recorded: three commands from nothing to the first figures.

import type { ComponentChildren } from 'preact';

import { Chip, Command, Soft } from '../parts/basics';
import { memtape } from '../terminal';
import type { Node } from '../types';
import { plural } from '../units';

export function NewCoordinator({ nodes }: { nodes: Node[] }) {
  const connected = nodes.filter(node => node.connected).length;
  return (
    <section class="empty">
      <div role="status">
        <h1>No job has been recorded yet</h1>
      </div>
      <ol>
        <Step line={memtape('agent')}>
          On every GPU node, start an agent.
          {connected ? (
            <>
              {' '}
              <Chip name="connected" /> {plural(connected, 'node')}
            </>
          ) : null}
        </Step>
        <Step line="memtape run -- torchrun --nproc-per-node 8 train.py">
          Start the training as usual, with <code>memtape run --</code> before the command:
        </Step>
        <Step line={memtape('incidents')}>
          Ask what was found. This page shows the same, without a reload:
        </Step>
      </ol>
      <Soft>
        Without a GPU, <code>memtape demo</code> shows a whole run with a rank that leaks.
      </Soft>
    </section>
  );
}

const Step = ({ line, children }: { line: string; children: ComponentChildren }) => (
  <li>
    {children}
    <Command line={line} />
  </li>
);
