// A canvas that is sharp on any screen, and is drawn again when its size, its drawing or the
// colours change.

import { useEffect, useRef } from 'preact/hooks';
import type { JSX } from 'preact';

import { scheme } from '../theme';

export type Paint = (context: CanvasRenderingContext2D, width: number, height: number) => void;

type Attributes = Omit<JSX.IntrinsicElements['canvas'], 'ref' | 'height'>;

/** `height` in pixels of the style sheet; `paint` draws in the same. */
export function Canvas({
  height,
  paint,
  ...attributes
}: { height: number; paint: Paint } & Attributes) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const painter = useRef(paint);
  painter.current = paint;
  const colours = scheme.value;
  const draw = () => {
    const node = canvas.current;
    const context = node?.getContext('2d');
    if (!node || !context || node.clientWidth === 0) return;
    const [width, scale] = [node.clientWidth, window.devicePixelRatio || 1];
    node.width = Math.round(width * scale);
    node.height = Math.round(height * scale);
    context.scale(scale, scale);
    painter.current(context, width, height);
  };
  useEffect(draw, [paint, height, colours]);
  useEffect(() => {
    const observer = new ResizeObserver(draw);
    observer.observe(canvas.current!);
    return () => observer.disconnect();
  }, [height]);
  return <canvas ref={canvas} style={{ height: `${height}px` }} {...attributes} />;
}

/** Lines across a field: nothing is known there. */
export function hatch(
  context: CanvasRenderingContext2D,
  stroke: string,
  [x, y, width, height]: [number, number, number, number],
) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = stroke;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
