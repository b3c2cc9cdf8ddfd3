// The start of the page, and of a report, which is this page with its answers inside.

import { render } from 'preact';

import 'uplot/dist/uPlot.min.css';
import './style.css';
import './rendering';
import { App } from './app';

render(<App />, document.getElementById('page')!);
